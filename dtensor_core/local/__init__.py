"""What ranks run on local tensors: operators, and what stands in for them where parts are held."""
