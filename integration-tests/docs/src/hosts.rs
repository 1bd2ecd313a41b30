//! Empty hosts in one network: namespaces of network, mounts and name, with a folder `/var/lib` of their own.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

/// Hosts of one page, at most.
const MAX_HOSTS: usize = 8;
/// The domain of the hosts.
const DOMAIN: &str = "lab.example";
/// The namespace with the bridge that connects the hosts.
const SWITCH: &str = "switch";

/// A network of hosts. It ends with this value.
#[derive(Debug)]
pub struct Hosts {
    prefix: String,
    names: Vec<String>,
}

impl Hosts {
    /// An empty network.
    ///
    /// # Errors
    /// Without root on Linux.
    pub fn create() -> Result<Self> {
        ensure!(may_create(), "hosts need root on Linux");
        let hosts = Self { prefix: format!("cd{}", std::process::id()), names: Vec::new() };
        hosts.ip(&["netns", "add", &hosts.namespace(SWITCH)])?;
        hosts.ip_in(SWITCH, &["link", "add", "bridge", "type", "bridge"])?;
        hosts.ip_in(SWITCH, &["link", "set", "bridge", "up"])?;
        Ok(hosts)
    }

    /// The command that starts a shell on a host; the host is made at first. Its address is 10.99.0.N, in the order of
    /// their making.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn shell(&mut self, name: &str, home: &Path) -> Result<Vec<String>> {
        if !self.names.iter().any(|known| known == name) {
            self.add(name)?;
        }
        let hosts: String = self
            .names
            .iter()
            .enumerate()
            .map(|(n, name)| format!("10.99.0.{} {name}.{DOMAIN} {name}\n", n + 1))
            .collect();
        // Hosts that run already see the new one: the same file is mounted at each.
        let file = home.join("hosts");
        std::fs::write(&file, format!("127.0.0.1 localhost\n{hosts}"))?;
        let enter = format!(
            "mount -t tmpfs tmpfs /var/lib && mount --bind {} /etc/hosts && hostname {name}.{DOMAIN} && exec bash --noprofile --norc",
            file.display()
        );
        let words = ["ip", "netns", "exec", &self.namespace(name), "unshare", "--mount", "--uts", "sh", "-c", &enter];
        Ok(words.map(str::to_owned).to_vec())
    }

    fn add(&mut self, name: &str) -> Result<()> {
        ensure!(self.names.len() < MAX_HOSTS, "a page has at most {MAX_HOSTS} hosts");
        self.names.push(name.to_owned());
        let number = self.names.len();
        let (namespace, port) = (self.namespace(name), format!("port{number}"));
        self.ip(&["netns", "add", &namespace])?;
        self.ip_in(SWITCH, &["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &namespace])?;
        self.ip_in(SWITCH, &["link", "set", &port, "master", "bridge", "up"])?;
        self.ip_in(name, &["address", "add", &format!("10.99.0.{number}/24"), "dev", "eth0"])?;
        self.ip_in(name, &["link", "set", "eth0", "up"])?;
        self.ip_in(name, &["route", "add", "default", "dev", "eth0"])?;
        self.ip_in(name, &["link", "set", "lo", "up"])
    }

    fn namespace(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    fn ip_in(&self, name: &str, args: &[&str]) -> Result<()> {
        self.ip(&[&["-n", &self.namespace(name)], args].concat())
    }

    fn ip(&self, args: &[&str]) -> Result<()> {
        let output = Command::new("ip").args(args).output().context("cannot run ip")?;
        if !output.status.success() {
            bail!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in self.names.iter().map(String::as_str).chain([SWITCH]) {
            _ = self.ip(&["netns", "delete", &self.namespace(name)]);
        }
    }
}

/// Whether this process may create hosts.
#[must_use]
pub fn may_create() -> bool {
    let id = Command::new("id").arg("-u").output();
    cfg!(target_os = "linux") && id.is_ok_and(|output| output.stdout.starts_with(b"0"))
}
