//! Provides the images that every node starts with; a machine writes each archive once.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use super::{DNS_IMAGE, PAUSE_IMAGE, PROBE_IMAGE, RealClustersConfig, RealClustersError, liqo, private_folder};
use crate::binaries::Binaries;
use crate::image::{self, Image};
use crate::port::random;

/// Age at which archives of old program versions are removed; younger ones may still be read by a start.
const STALE_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Links the archives of all images that `config` needs into `folder`; the archives themselves are in `kept`.
pub(super) fn provide(
    folder: &Path,
    kept: &Path,
    binaries: &Binaries,
    config: &RealClustersConfig,
) -> Result<(), RealClustersError> {
    private_folder(folder)?;
    private_folder(kept)?;
    let own = |program: &str, name: &str, user: &'static str| {
        (program.to_owned(), name.to_owned(), format!("/{program}"), user, false)
    };
    let mut images = vec![own("pause", PAUSE_IMAGE, "65535:65535"), own("probe", PROBE_IMAGE, "65532:65532")];
    if config.dns {
        images.push(own("coredns", DNS_IMAGE, "65532:65532"));
    }
    if let Some(liqo) = &config.liqo {
        let (version, tag) = (liqo.version, liqo.version.tag());
        // The names that Liqo's chart gives them, and the paths that it starts. The virtual kubelet writes to /tmp.
        images.extend(liqo::LIQO_PROGRAMS.iter().map(|name| {
            (version.file(name), format!("ghcr.io/liqotech/{name}:{tag}"), format!("/usr/bin/{name}"), "", true)
        }));
    }
    for (program, name, path, user, tmp) in images {
        let file = binaries.program(&program);
        let image = Image { name: &name, program: &file, path: &path, user, tmp };
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| RealClustersError::Io { path, source }
        };
        let archive = keep(kept, &program, &image).map_err(failed(&file))?;
        let link = folder.join(format!("{program}.tar"));
        symlink(archive, &link).map_err(failed(&link))?;
    }
    Ok(())
}

/// Path of an image's archive, whose name depends on its content. Writes the archive if it is missing.
fn keep(kept: &Path, program: &str, image: &Image<'_>) -> io::Result<PathBuf> {
    let file = fs::metadata(image.program)?;
    let written = (file.len(), file.mtime(), file.mtime_nsec());
    let digest = Sha256::digest(format!("{written:?} {} {} {} {}", image.name, image.path, image.user, image.tmp));
    let archive = kept.join(format!("{program}@{}.tar", hex::encode(&digest[..8])));
    if archive.exists() {
        return Ok(archive);
    }
    let part = archive.with_extension(format!("{:016x}.part", random()));
    image::write(image, &part)?;
    fs::rename(&part, &archive)?;
    discard(kept, program, &archive)?;
    Ok(archive)
}

/// Removes the archives of the program's earlier versions.
fn discard(kept: &Path, program: &str, current: &Path) -> io::Result<()> {
    for entry in fs::read_dir(kept)? {
        let entry = entry?;
        let of_program = entry.file_name().to_string_lossy().split('@').next() == Some(program);
        let age = SystemTime::now().duration_since(entry.metadata()?.modified()?).unwrap_or_default();
        if of_program && entry.path() != current && age > STALE_AFTER {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_written_once_for_each_version_of_a_program_and_old_ones_go() {
        let dir = tempfile::tempdir().unwrap();
        let (kept, program) = (dir.path().join("kept"), dir.path().join("probe"));
        fs::create_dir(&kept).unwrap();
        fs::write(&program, "one").unwrap();
        let image = Image { name: "comity.local/probe:1", program: &program, path: "/probe", user: "", tmp: false };
        let first = keep(&kept, "probe", &image).unwrap();
        assert_eq!(keep(&kept, "probe", &image).unwrap(), first);
        assert_ne!(keep(&kept, "probe", &Image { tmp: true, ..image }).unwrap(), first);

        fs::File::options().write(true).open(&first).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        let other = kept.join("pause@0.tar");
        fs::copy(&first, &other).unwrap();
        fs::File::options().write(true).open(&other).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        fs::write(&program, "another").unwrap();
        let second = keep(&kept, "probe", &image).unwrap();
        assert!(second != first && second.exists() && !first.exists() && other.exists());
    }
}
