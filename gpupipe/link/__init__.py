"""What a data processing server and its clients say to one another, over ZeroMQ and shared memory."""
