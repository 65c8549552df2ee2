"""What old classes tell about new ones: rehearsals, confidence, tuning."""
