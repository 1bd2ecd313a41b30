//! Container images without a registry or a daemon: a docker-archive file with one static program in it, as
//! `ctr images import` reads it.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::json;
use sha2::{Digest, Sha256};

const BLOCK: usize = 512;

/// Writes an image named `name` (with a registry and a tag, as in `comity.local/probe:1`) that holds `program` as its
/// only file and starts it as `user` ("65532:65532"; empty: root). The same program gives the same bytes.
///
/// # Errors
///
/// When the program cannot be read or `archive` cannot be written.
pub fn write(name: &str, program: &Path, user: &str, archive: &Path) -> io::Result<()> {
    let file = program.file_name().and_then(|name| name.to_str()).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{} has no usable file name", program.display()))
    })?;
    let mut layer = Vec::new();
    append(&mut layer, file, 0o755, &fs::read(program)?)?;
    finish(&mut layer);
    let diff = hex::encode(Sha256::digest(&layer));

    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {
            "Env": ["PATH=/"],
            "Entrypoint": [format!("/{file}")],
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
    append(&mut out, "manifest.json", 0o644, manifest.as_bytes())?;
    append(&mut out, &config_name, 0o644, config.as_bytes())?;
    append(&mut out, &layer_name, 0o644, &layer)?;
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

/// Appends one regular file in the ustar format (POSIX.1-1988), owned by root, dated 1970.
fn append(tar: &mut Vec<u8>, name: &str, mode: u32, content: &[u8]) -> io::Result<()> {
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
    put(156, "0");
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
    fn tar_reads_what_is_written_and_the_bytes_are_stable() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("probe");
        fs::write(&program, b"\x7fELF and so on").unwrap();
        let (one, two) = (dir.path().join("one.tar"), dir.path().join("two.tar"));
        write("comity.local/probe:1", &program, "65532:65532", &one).unwrap();
        write("comity.local/probe:1", &program, "65532:65532", &two).unwrap();
        assert_eq!(fs::read(&one).unwrap(), fs::read(&two).unwrap());

        let tar = |args: &[&str]| {
            let output = Command::new("tar").args(args).current_dir(dir.path()).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let names = tar(&["-tf", "one.tar"]);
        let layer = names.lines().find(|name| name.ends_with("layer.tar")).unwrap();
        tar(&["-xf", "one.tar"]);
        assert_eq!(tar(&["-tvf", layer]).split_whitespace().next().unwrap(), "-rwxr-xr-x");
        assert_eq!(tar(&["-xOf", layer, "probe"]), "\x7fELF and so on");
    }
}
