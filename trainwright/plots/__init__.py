"""Pictures as SVG text, drawn by matplotlib, which is imported only when one is drawn."""
