"""The train step: the outside view of a distributed job."""
