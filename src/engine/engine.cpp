// Filled by its module.
