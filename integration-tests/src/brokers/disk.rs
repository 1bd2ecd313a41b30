//! A broker's disk: a loop-mounted file system, and a preloaded library that makes it slow, read-only or broken.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::shell::{run, run_cleanup};

const LAYER: &str = include_str!("disk_faults.c");
/// Size of the disk, enough for the log of an hour. The file is sparse.
const SIZE: u64 = 768 << 20;
/// Name of the file that fills the disk.
const FILLER: &str = ".filler";
/// Who mounted the disk, by process id.
const OWNER: &str = ".owner";
/// Steps in which the disk is filled.
const STEPS: [&str; 4] = ["64M", "1M", "64K", "4K"];

/// Compiles the preloaded library.
///
/// # Errors
/// When the compiler fails, with its output.
pub(super) fn compile(dir: &Path) -> Result<PathBuf> {
    let (source, library) = (dir.join("disk_faults.c"), dir.join("disk_faults.so"));
    fs::write(&source, LAYER)?;
    let args = ["-shared", "-fPIC", "-O2", "-o", text(&library)?, text(&source)?, "-ldl"];
    run("cc", &args).context("compile the layer of disk faults")?;
    Ok(library)
}

/// The effect of writes to a disk; the value is a Linux error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writes {
    Done = 0,
    /// EIO: the device is failing.
    Failing = 5,
    /// EROFS: it was remounted read-only.
    ReadOnly = 30,
}

/// One disk. Dropping it unmounts it.
pub(super) struct Disk {
    image: PathBuf,
    /// Shared page that controls the preloaded library.
    page: PathBuf,
    at: Option<PathBuf>,
}

impl Disk {
    /// Makes a disk that is not mounted yet.
    ///
    /// # Errors
    /// When its file system cannot be made.
    pub(super) fn make(dir: &Path, name: &str) -> Result<Self> {
        let (image, page) = (dir.join(format!("{name}.img")), dir.join(format!("{name}.page")));
        File::create(&image)?.set_len(SIZE)?;
        // No reserved blocks: the broker runs as root.
        run("mkfs.ext4", &["-q", "-m", "0", text(&image)?])?;
        fs::write(&page, [0; 8])?;
        Ok(Self { image, page, at: None })
    }

    pub(super) fn page(&self) -> &Path {
        &self.page
    }

    /// Mounts the disk and moves a data directory to it; returns the new path.
    pub(super) fn mount(&mut self, at: &Path, data: &Path) -> Result<PathBuf> {
        fs::create_dir(at)?;
        run("mount", &["-o", "loop", text(&self.image)?, text(at)?])?;
        self.at = Some(at.to_owned());
        fs::remove_dir(at.join("lost+found"))?;
        fs::write(at.join(OWNER), std::process::id().to_string())?;
        run("cp", &["-a", text(data)?, text(at)?])?;
        fs::remove_dir_all(data)?;
        Ok(at.join(data.file_name().context("a data directory has a name")?))
    }

    /// Fills the disk.
    pub(super) fn fill(&self) -> Result<()> {
        let filler = self.filler()?;
        let mut end = 0;
        for step in STEPS {
            // Until it fails because the disk is full.
            while run("fallocate", &["-o", &end.to_string(), "-l", step, text(&filler)?]).is_ok() {
                end = fs::metadata(&filler)?.len();
            }
        }
        Ok(())
    }

    /// Frees the space that [`Self::fill`] took.
    pub(super) fn empty(&self) -> Result<()> {
        Ok(fs::remove_file(self.filler()?)?)
    }

    /// Delays each sync, and makes writes fail as `writes` says.
    pub(super) fn disturb(&self, slower: Duration, writes: Writes) -> Result<()> {
        let mut page = File::options().write(true).open(&self.page)?;
        page.seek(SeekFrom::Start(0))?;
        let words = [u32::try_from(slower.as_millis())?, writes as u32];
        // In place, because the library maps the file.
        Ok(page.write_all(&words.map(u32::to_ne_bytes).concat())?)
    }

    fn filler(&self) -> Result<PathBuf> {
        Ok(self.at.as_ref().context("the disk is not mounted")?.join(FILLER))
    }

    /// Unmounts the disk even if it is in use.
    pub(super) fn unmount(&mut self) {
        if let Some(at) = self.at.take() {
            run_cleanup("umount", &["--lazy".as_ref(), at.as_os_str()]);
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.unmount();
    }
}

/// Unmounts and removes the disks that killed runs left behind.
pub(super) fn sweep(alive: impl Fn(&str) -> bool) {
    let mut left = BTreeSet::new();
    for line in fs::read_to_string("/proc/mounts").unwrap_or_default().lines() {
        let Some(at) = line.split(' ').nth(1).map(Path::new).filter(|_| line.starts_with("/dev/loop")) else {
            continue;
        };
        let Ok(owner) = fs::read_to_string(at.join(OWNER)) else { continue };
        if let Some(federation) = at.parent().filter(|dir| dir.to_string_lossy().contains("/comity-scenario-"))
            && !alive(owner.trim())
        {
            run_cleanup("umount", &["--lazy".as_ref(), at.as_os_str()]);
            left.insert(federation.to_owned());
        }
    }
    // Once nothing is mounted there: a file that is removed below a mount is removed from the disk.
    for federation in left {
        let _ = fs::remove_dir_all(federation);
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("paths of tests are text")
}
