//! How the system gives memory to a process.

/// Asks for memory in pages of the usual size, whatever the allocator hints: for a process that makes and drops many
/// small things, the system otherwise clears two megabytes where a few kilobytes are used ([transparent huge
/// pages](https://docs.kernel.org/admin-guide/mm/transhuge.html), `PR_SET_THP_DISABLE`). Programs that it starts
/// inherit this. Where the system does not know it, everything only goes on as it was.
pub fn use_small_pages() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}
