//! The broker's process; everything is in the library.

use std::process::ExitCode;

use comity_runtime::memory::use_small_pages;
use comity_runtime::private_files::make_private_files_only;
use mimalloc::MiMalloc;

/// A broker makes and drops small things all the time, and a copy of everything for each snapshot: this one is quicker
/// at the first than the C library's, and gives the second back to the system.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    use_small_pages();
    make_private_files_only();
    comity_broker::command_line::main().await
}
