//! An image with this machine's Python and its standard library, for workloads written in it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::image::{self, FolderImage};

/// Name of the image. Its entry point is the interpreter.
pub const PYTHON_IMAGE: &str = "comity.local/python:1";
/// The distribution's Python, whose paths are short enough for the format of images.
const PYTHON: &str = "/usr/bin/python3";
/// Prints the interpreter and the folder of the standard library.
const FIND_PARTS: &str = "import os, sys, sysconfig\n\
print(os.path.realpath(sys.executable))\n\
print(sysconfig.get_path('stdlib'))";
/// Folders of the standard library that programs do not import, and compiled files.
const LEFT_OUT: [&str; 11] = [
    "__pycache__",
    "dist-packages",
    "site-packages",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "test",
    "tests",
    "tkinter",
    "turtledemo",
];
/// Start of the name of the folder for programs that link the interpreter.
const DEVELOPMENT: &str = "config-";

/// Missing requirements of this machine, each with its remedy.
#[must_use]
pub fn missing_for_python_image() -> Vec<String> {
    let needs = |path: &str, remedy: &str| (!Path::new(path).exists()).then(|| format!("{path} ({remedy})"));
    needs(PYTHON, "scripts/system-packages installs it").into_iter().collect()
}

/// Writes the image as the file `archive`. `scratch` is an empty folder for its files.
///
/// # Errors
///
/// When the interpreter does not run, or a file cannot be copied.
pub fn write_python_image(scratch: &Path, archive: &Path) -> io::Result<()> {
    let said = output_of(Command::new(PYTHON).args(["-I", "-c", FIND_PARTS]))?;
    let mut lines = said.lines().map(PathBuf::from);
    let (Some(interpreter), Some(library)) = (lines.next(), lines.next()) else {
        return Err(io::Error::other(format!("{PYTHON} does not say where its parts are: {said}")));
    };
    let mut binaries = vec![interpreter.clone()];
    copy_folder(&library, &inside(scratch, &library), &mut binaries)?;
    copy(&interpreter, &inside(scratch, &interpreter))?;
    copy(&interpreter, &inside(scratch, Path::new(PYTHON)))?;
    for shared in shared_libraries(&binaries)? {
        copy(&shared, &inside(scratch, &shared))?;
    }
    let image = FolderImage { name: PYTHON_IMAGE, folder: scratch, path: PYTHON, user: "65532:65532", env: &[] };
    image::write_folder(&image, archive)
}

/// The place of a path of this machine in the image's folder.
fn inside(folder: &Path, path: &Path) -> PathBuf {
    folder.join(path.strip_prefix("/").unwrap_or(path))
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::copy(from, to).map(drop)
}

/// Copies a folder of the standard library; adds its extension modules to `binaries`.
fn copy_folder(from: &Path, to: &Path, binaries: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (name, path) = (entry.file_name(), entry.path());
        let target = to.join(&name);
        if LEFT_OUT.iter().any(|left_out| name == *left_out) || name.to_string_lossy().starts_with(DEVELOPMENT) {
            continue;
        }
        if path.is_dir() {
            copy_folder(&path, &target, binaries)?;
        } else if path.is_file() {
            if path.extension().is_some_and(|extension| extension == "so") {
                binaries.push(path.clone());
            }
            copy(&path, &target)?;
        }
    }
    Ok(())
}

/// The shared libraries of these programs and libraries, and the loader.
fn shared_libraries(binaries: &[PathBuf]) -> io::Result<BTreeSet<PathBuf>> {
    let said = output_of(Command::new("ldd").args(binaries))?;
    // "libm.so.6 => /lib/libm.so.6 (0x…)", and "/lib64/ld-linux-x86-64.so.2 (0x…)" for the loader. A heading ends in ":".
    let paths = said.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    Ok(paths.filter(|path| !path.ends_with(':')).map(PathBuf::from).collect())
}

fn output_of(command: &mut Command) -> io::Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(io::Error::other(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_image_has_an_interpreter_that_runs_without_this_machines_files() {
        if !missing_for_python_image().is_empty() || !fs::metadata("/proc/self").is_ok_and(|own| is_root(&own)) {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (scratch, archive) = (dir.path().join("files"), dir.path().join("python.tar"));
        fs::create_dir(&scratch).unwrap();
        write_python_image(&scratch, &archive).unwrap();
        let program = "import hashlib, json, pickle, urllib.request; print(hashlib.sha256(b'').hexdigest()[:8])";
        let said = output_of(Command::new("chroot").arg(&scratch).args([PYTHON, "-c", program])).unwrap();
        assert_eq!(said.trim(), "e3b0c442");
        let size = fs::metadata(&archive).unwrap().len();
        assert!(size < 80_000_000, "{size}");
    }

    fn is_root(own: &fs::Metadata) -> bool {
        std::os::unix::fs::MetadataExt::uid(own) == 0
    }
}
