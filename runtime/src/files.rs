//! Files: atomic writes, modes of secrets, strict YAML, and the contexts of the command line.

pub mod atomic_file;
pub mod contexts;
pub mod private_files;
pub mod strict_yaml;
