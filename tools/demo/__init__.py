"""Parts of the demo: what is asked, who serves, what is measured, what is said about it."""
