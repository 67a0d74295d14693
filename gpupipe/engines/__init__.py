"""What turns plans of batches into batches."""
