"""Networks of images as C++: a file of operators and weights, and the header that runs it."""
