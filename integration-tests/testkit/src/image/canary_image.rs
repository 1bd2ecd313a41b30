//! The image of canaries, as `deploy/images/canary` describes it, without podman. Debian's busybox stands in for the
//! base image, which has no other files that canaries use.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::image::{self, FolderImage};

/// Name of the image.
pub const CANARY_IMAGE: &str = "comity.local/canary:1";
const CONTAINERFILE: &str = include_str!("../../../../deploy/images/canary/Containerfile");
const LOOK: &str = include_str!("../../../../deploy/images/canary/look");
/// Debian's static busybox.
const BUSYBOX: &str = "/usr/bin/busybox";
/// Its names for what the canary's script runs.
const APPLETS: [&str; 5] = ["sh", "find", "nc", "sleep", "true"];

/// Missing requirements of this machine, each with its remedy.
#[must_use]
pub fn missing_for_canary_image() -> Vec<String> {
    let missing = (!Path::new(BUSYBOX).exists()).then(|| format!("{BUSYBOX} (scripts/system-packages installs it)"));
    missing.into_iter().collect()
}

/// Writes the image as the file `archive`. `scratch` is an empty folder for its files.
///
/// # Errors
///
/// When busybox cannot be read, the Containerfile has another form, or a file cannot be written.
pub fn write_canary_image(scratch: &Path, archive: &Path) -> io::Result<()> {
    copy_applets(&APPLETS, &scratch.join("bin"))?;
    let recipe = Recipe::read(CONTAINERFILE)
        .ok_or_else(|| io::Error::other("the Containerfile of canaries has no ENV, USER or ENTRYPOINT of one word"))?;
    let program = scratch.join(recipe.program.trim_start_matches('/'));
    fs::write(&program, LOOK)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    let Recipe { program: path, user, env } = &recipe;
    image::write_folder(&FolderImage { name: CANARY_IMAGE, folder: scratch, path, user, env }, archive)
}

/// Copies Debian's static busybox into a folder under the names of these applets.
pub(super) fn copy_applets(applets: &[&str], bin: &Path) -> io::Result<()> {
    fs::create_dir_all(bin)?;
    for applet in applets {
        fs::copy(BUSYBOX, bin.join(applet))?;
    }
    Ok(())
}

/// What the Containerfile says about the image.
#[derive(Debug, PartialEq, Eq)]
struct Recipe {
    program: String,
    user: String,
    env: Vec<String>,
}

impl Recipe {
    fn read(containerfile: &str) -> Option<Self> {
        let words = |instruction: &str| {
            let mut lines = containerfile.lines();
            lines.find_map(|line| line.strip_prefix(instruction)?.strip_prefix(' ')).map(str::trim)
        };
        let program = words("ENTRYPOINT")?.strip_prefix("[\"")?.strip_suffix("\"]")?;
        Some(Self {
            program: program.to_owned(),
            user: words("USER")?.to_owned(),
            env: words("ENV")?.split_whitespace().map(str::to_owned).collect(),
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_containerfile_asks_for_every_gpu() {
        let recipe = Recipe::read(CONTAINERFILE).unwrap();
        assert_eq!((recipe.program.as_str(), recipe.user.as_str()), ("/look", "65535:65535"));
        assert!(recipe.env.contains(&"NVIDIA_VISIBLE_DEVICES=all".to_owned()), "{recipe:?}");
    }
}
