"""What a person types and sees: one file per subcommand, and the renderers. No decisions here."""
