"""What a user hands over, checked: samples, labels, and warnings about both."""
