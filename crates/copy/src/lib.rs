//! Copy engines between engine KV memory and pool pages.
