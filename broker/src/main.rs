//! The `comity-broker` binary.

use std::process::ExitCode;

use comity_runtime::memory::use_small_pages;
use comity_runtime::private_files::make_private_files_only;
use mimalloc::MiMalloc;

/// A broker allocates many small values, and a copy of its state for each snapshot. mimalloc is faster than the C
/// library at the former and returns the latter to the system.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    use_small_pages();
    make_private_files_only();
    comity_broker::command_line::main().await
}
