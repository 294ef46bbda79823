"""Scripts of the project: demo data, checks, generated files and the documentation site. The package needs none."""
