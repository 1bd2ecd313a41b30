//! An image with a shell and the tools that images of distributions have, by Debian's busybox.

use std::io;
use std::path::Path;

use super::canary_image::copy_applets;
use crate::image::{self, FolderImage};

/// Name of the image.
pub const SHELL_IMAGE: &str = "comity.local/shell:1";
const TOOLS: [&str; 14] =
    ["sh", "cat", "date", "env", "find", "id", "ls", "mkdir", "nc", "seq", "sleep", "tar", "touch", "true"];

/// Writes the image as the file `archive`. `scratch` is an empty folder for its files.
///
/// # Errors
///
/// When busybox cannot be read, or a file cannot be written.
pub fn write_shell_image(scratch: &Path, archive: &Path) -> io::Result<()> {
    copy_applets(&TOOLS, &scratch.join("bin"))?;
    let image = FolderImage { name: SHELL_IMAGE, folder: scratch, path: "/bin/sh", user: "65532:65532", env: &[] };
    image::write_folder(&image, archive)
}
