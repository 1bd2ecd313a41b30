//! GPUs for containers of hosts without Kubernetes: device nodes and their CDI specification, without a driver.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use serde_json::json;

use crate::image::canary_image::missing_for_canary_image;

/// NVIDIA's number of character devices. Opening one says ENXIO, for want of a driver, where the container may use it, and
/// EPERM where it may not.
const NVIDIA_MAJOR: u32 = 195;
const SPECIFICATIONS: &str = "/var/run/cdi";

/// Missing requirements of this machine for containers of podman, each with its remedy.
#[must_use]
pub fn missing_for_containers() -> Vec<String> {
    let mut missing = missing_for_canary_image();
    let uid = Command::new("id").arg("-u").output();
    if !uid.is_ok_and(|output| output.stdout.trim_ascii() == b"0") {
        missing.push("root".to_owned());
    }
    if Command::new("podman").arg("--version").output().is_err() {
        missing.push("podman (scripts/system-packages installs it)".to_owned());
    }
    let ranges = fs::read_to_string("/etc/subuid").unwrap_or_default();
    if !ranges.lines().any(|line| line.starts_with("containers:")) {
        missing.push("a line for containers in /etc/subuid (scripts/system-packages writes it)".to_owned());
    }
    missing
}

/// GPUs that exist as long as this value.
#[derive(Debug)]
pub struct ContainerGpus {
    /// Kind of the CDI devices; their names are numbers from 0.
    pub kind: String,
    /// Beginning of the paths of the device nodes, before the number.
    pub path: String,
    files: Vec<PathBuf>,
}

impl ContainerGpus {
    /// Makes `count` GPUs; `name` tells them from those of other tests. Needs root.
    ///
    /// # Errors
    ///
    /// When a node or the specification cannot be made.
    pub fn make(name: &str, count: u32) -> io::Result<Self> {
        let vendor = format!("comity-{name}-{}", std::process::id());
        let mut gpus = Self { kind: format!("{vendor}/gpu"), path: format!("/dev/{vendor}-"), files: Vec::new() };
        let mut devices = Vec::new();
        for gpu in 0..count {
            let path = PathBuf::from(format!("{}{gpu}", gpus.path));
            let (major, minor) = (NVIDIA_MAJOR.to_string(), gpu.to_string());
            let made = Command::new("mknod").arg(&path).args(["c", &major, &minor]).status()?;
            if !made.success() {
                return Err(io::Error::other(format!("mknod {}: {made}", path.display())));
            }
            gpus.files.push(path.clone());
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
            // In a user namespace the runtime binds the node of the same path on the host.
            let node = json!({ "path": path, "type": "c", "major": NVIDIA_MAJOR, "minor": gpu, "permissions": "rw" });
            devices.push(json!({ "name": minor, "containerEdits": { "deviceNodes": [node] } }));
        }
        fs::create_dir_all(SPECIFICATIONS)?;
        let file = PathBuf::from(format!("{SPECIFICATIONS}/{vendor}.json"));
        gpus.files.push(file.clone());
        fs::write(file, json!({ "cdiVersion": "0.5.0", "kind": gpus.kind, "devices": devices }).to_string())?;
        Ok(gpus)
    }
}

impl Drop for ContainerGpus {
    fn drop(&mut self) {
        for file in &self.files {
            // What stays is of no use to anybody.
            _ = fs::remove_file(file);
        }
    }
}
