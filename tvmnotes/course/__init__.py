"""The course holds what the lessons show with: networks, digits, pictures, plots."""
