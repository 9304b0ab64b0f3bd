"""What is stored: schemas, files, Delta tables, and how a backend reads them."""
