"""The course has what the lessons show with: networks, digits, pictures, plots."""
