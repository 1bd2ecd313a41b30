//! The real `sshd` of OpenSSH. It admits the user who runs the tests.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SSHD: &str = "/usr/sbin/sshd";

/// A running server. Ends with its owner.
pub(crate) struct SshServer {
    pub(crate) port: u16,
    /// The key that it admits.
    pub(crate) key: PathBuf,
    /// The file with its own key.
    pub(crate) known_hosts: PathBuf,
    child: Child,
}

impl Drop for SshServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What this machine lacks.
pub(crate) fn missing() -> Vec<String> {
    let missing = format!("{SSHD} (Debian: openssh-server; scripts/system-packages)");
    if Path::new(SSHD).is_file() { Vec::new() } else { vec![missing] }
}

/// The name of the user who runs the tests.
pub(crate) fn user() -> String {
    let output = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Makes a key, and its public one beside it.
pub(crate) fn make_key(file: &Path, passphrase: &str) {
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", passphrase, "-f"]).arg(file).status();
    assert!(made.unwrap().success());
}

impl SshServer {
    /// Serves what this user may read. With `settings` of its own, as in `AcceptEnv`.
    pub(crate) fn start(home: &Path, settings: &str) -> Self {
        let (key, host_key) = (home.join("broker-key"), home.join("host-key"));
        make_key(&key, "");
        make_key(&host_key, "");
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let admitted = std::fs::read_to_string(key.with_extension("pub")).unwrap();
        std::fs::write(home.join("authorized_keys"), admitted).unwrap();
        let public = std::fs::read_to_string(host_key.with_extension("pub")).unwrap();
        let known_hosts = home.join("known_hosts");
        std::fs::write(&known_hosts, format!("# servers\n[127.0.0.1]:{port} {public}")).unwrap();
        // Root's sshd asks for this directory, which a package or a boot makes.
        let _ = std::fs::create_dir_all("/run/sshd");
        let config = format!(
            "ListenAddress 127.0.0.1\nPort {port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\n\
             UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nLogLevel ERROR\n{settings}\n",
            host_key.display(),
            home.join("authorized_keys").display()
        );
        let file = home.join("sshd_config");
        std::fs::write(&file, config).unwrap();
        let child = Command::new(SSHD).args(["-D", "-e", "-f"]).arg(&file).stdin(Stdio::null()).spawn().unwrap();
        let server = Self { port, key, known_hosts, child };
        let begun = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(20), "sshd does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }
}
