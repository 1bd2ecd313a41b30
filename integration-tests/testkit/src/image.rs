//! Writes container images as docker-archive files for `ctr images import`, from one static program or a folder.

pub(crate) mod canary_image;
pub(crate) mod python_image;
pub(crate) mod shell_image;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::json;
use sha2::{Digest, Sha256};

const BLOCK: usize = 512;
/// Where programs of images are.
const SEARCH_PATH: &str = "PATH=/:/usr/sbin:/usr/bin:/bin";

/// An image with one static program in it and no other file.
#[derive(Debug, Clone, Copy)]
pub struct Image<'a> {
    /// Its name with a registry and a tag, as in `comity.local/probe:1`.
    pub name: &'a str,
    /// Path of the program on the host.
    pub program: &'a Path,
    /// Absolute path of the program in the image, which is also its entry point.
    pub path: &'a str,
    /// User and group, such as `65532:65532`; empty for root.
    pub user: &'a str,
    /// Whether the image has an empty, world-writable `/tmp`.
    pub tmp: bool,
}

/// An image with the files of a folder.
#[derive(Debug, Clone, Copy)]
pub struct FolderImage<'a> {
    /// Its name with a registry and a tag.
    pub name: &'a str,
    /// The folder: files and folders only.
    pub folder: &'a Path,
    /// Absolute path of the entry point in the image.
    pub path: &'a str,
    /// User and group, as in [`Image`].
    pub user: &'a str,
    /// Variables of its environment, such as `A=b`.
    pub env: &'a [String],
}

/// Writes the image as the file `archive`. The same image gives the same bytes.
///
/// # Errors
///
/// When the program cannot be read or `archive` cannot be written.
pub fn write(image: &Image<'_>, archive: &Path) -> io::Result<()> {
    let Some(file) = image.path.strip_prefix('/') else {
        let why = format!("'{}' in the image {} is not an absolute path", image.path, image.name);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    };
    let mut layer = Vec::new();
    append(&mut layer, file, 0o755, Entry::File(&fs::read(image.program)?))?;
    if image.tmp {
        append(&mut layer, "tmp/", 0o1777, Entry::Folder)?;
    }
    archive_of(&ArchiveConfig { name: image.name, path: image.path, user: image.user, env: &[] }, layer, archive)
}

/// Writes the image as the file `archive`. The same folder gives the same bytes.
///
/// # Errors
///
/// When something in the folder cannot be read, or `archive` cannot be written.
pub fn write_folder(image: &FolderImage<'_>, archive: &Path) -> io::Result<()> {
    let mut layer = Vec::new();
    append_folder(&mut layer, image.folder, "")?;
    let config = ArchiveConfig { name: image.name, path: image.path, user: image.user, env: image.env };
    archive_of(&config, layer, archive)
}

fn append_folder(layer: &mut Vec<u8>, folder: &Path, prefix: &str) -> io::Result<()> {
    let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            append(layer, &format!("{name}/"), 0o755, Entry::Folder)?;
            append_folder(layer, &entry.path(), &format!("{name}/"))?;
        } else {
            let is_executable = entry.metadata()?.permissions().mode() & 0o111 != 0;
            let mode = if is_executable { 0o755 } else { 0o644 };
            append(layer, &name, mode, Entry::File(&fs::read(entry.path())?))?;
        }
    }
    Ok(())
}

/// The configuration in an archive; the fields are those of [`FolderImage`].
struct ArchiveConfig<'a> {
    name: &'a str,
    path: &'a str,
    user: &'a str,
    env: &'a [String],
}

/// Writes an image of one layer.
fn archive_of(config: &ArchiveConfig<'_>, mut layer: Vec<u8>, archive: &Path) -> io::Result<()> {
    let ArchiveConfig { name, path, user, env } = config;
    let env: Vec<&str> = [SEARCH_PATH].into_iter().chain(env.iter().map(String::as_str)).collect();
    finish(&mut layer);
    let diff = hex::encode(Sha256::digest(&layer));

    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {
            "Env": env,
            "Entrypoint": [path],
            "User": user,
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{diff}")]},
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "comity-testkit"}],
    })
    .to_string();
    let config_name = format!("{}.json", hex::encode(Sha256::digest(&config)));
    // Named by the digest in full, the layer's path would fill the header's name field exactly; a part is enough.
    let layer_name = format!("{}/layer.tar", &diff[..32]);
    let manifest = json!([{"Config": config_name, "RepoTags": [name], "Layers": [layer_name]}]).to_string();

    let mut out = Vec::new();
    append(&mut out, "manifest.json", 0o644, Entry::File(manifest.as_bytes()))?;
    append(&mut out, &config_name, 0o644, Entry::File(config.as_bytes()))?;
    append(&mut out, &layer_name, 0o644, Entry::File(&layer))?;
    finish(&mut out);
    fs::write(archive, out)
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

enum Entry<'a> {
    File(&'a [u8]),
    Folder,
}

/// Appends one entry in the ustar format (POSIX.1-1988), owned by root, dated 1970.
fn append(tar: &mut Vec<u8>, name: &str, mode: u32, entry: Entry<'_>) -> io::Result<()> {
    let (kind, content) = match entry {
        Entry::File(content) => ("0", content),
        Entry::Folder => ("5", [].as_slice()),
    };
    if name.len() > 100 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("'{name}' is longer than 100 bytes")));
    }
    let mut header = [0_u8; BLOCK];
    let mut put = |offset: usize, field: &str| header[offset..offset + field.len()].copy_from_slice(field.as_bytes());
    put(0, name);
    put(100, &format!("{mode:07o}"));
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{:011o}", content.len()));
    put(136, "00000000000");
    // The checksum is taken with blanks in its own place.
    put(148, "        ");
    put(156, kind);
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    tar.extend_from_slice(&header);
    tar.extend_from_slice(content);
    tar.resize(tar.len().next_multiple_of(BLOCK), 0);
    Ok(())
}

/// Two empty blocks end an archive.
fn finish(tar: &mut Vec<u8>) {
    tar.resize(tar.len() + 2 * BLOCK, 0);
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn tar_reads_the_archive_and_its_bytes_are_stable() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("probe");
        fs::write(&program, b"\x7fELF and so on").unwrap();
        let (one, two) = (dir.path().join("one.tar"), dir.path().join("two.tar"));
        let image = Image {
            name: "comity.local/probe:1",
            program: &program,
            path: "/usr/bin/probe",
            user: "65532:65532",
            tmp: true,
        };
        write(&image, &one).unwrap();
        write(&image, &two).unwrap();
        assert_eq!(fs::read(&one).unwrap(), fs::read(&two).unwrap());

        let tar = |args: &[&str]| {
            let output = Command::new("tar").args(args).current_dir(dir.path()).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let names = tar(&["-tf", "one.tar"]);
        let layer = names.lines().find(|name| name.ends_with("layer.tar")).unwrap();
        tar(&["-xf", "one.tar"]);
        let listed = tar(&["-tvf", layer]);
        let modes: Vec<_> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(modes, ["-rwxr-xr-x", "drwxrwxrwt"]);
        assert_eq!(tar(&["-xOf", layer, "usr/bin/probe"]), "\x7fELF and so on");

        let folder = dir.path().join("folder");
        fs::create_dir_all(folder.join("usr/bin")).unwrap();
        fs::copy(&program, folder.join("usr/bin/probe")).unwrap();
        let of_folder = FolderImage {
            name: image.name,
            folder: &folder,
            path: image.path,
            user: image.user,
            env: &["NVIDIA_VISIBLE_DEVICES=all".to_owned()],
        };
        write_folder(&of_folder, &two).unwrap();
        let names = tar(&["-tf", "two.tar"]);
        let config = names.lines().find(|name| name.ends_with(".json") && *name != "manifest.json").unwrap();
        assert!(tar(&["-xOf", "two.tar", config]).contains(r#","NVIDIA_VISIBLE_DEVICES=all"]"#));
        let layer = names.lines().find(|name| name.ends_with("layer.tar")).unwrap();
        tar(&["-xf", "two.tar"]);
        assert_eq!(tar(&["-tf", layer]).lines().collect::<Vec<_>>(), ["usr/", "usr/bin/", "usr/bin/probe"]);
        assert!(write(&Image { path: "probe", ..image }, &one).unwrap_err().to_string().contains("'probe'"));
    }
}
