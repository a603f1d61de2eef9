"""What the lessons show with: networks, digits, pictures, plots."""
