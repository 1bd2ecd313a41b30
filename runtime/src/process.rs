//! A program's process: help of its command line, shutdown by signals, memory.

pub mod help;
pub mod memory;
pub mod shutdown;
