"""Where rows come from: files, folders, object stores and the Hugging Face hub."""
