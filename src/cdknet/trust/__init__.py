"""What old classes reveal about new ones: rehearsals, confidence, tuning."""
