//! Command lines of podman. Every value follows `=` or `--`, so that none is taken for an option.

use std::path::PathBuf;

use super::POD_LABEL;

/// Most processes of a container.
const MAX_PROCESSES: u32 = 4_096;
/// Where a container's log ends.
const LOG_MEGABYTES: u32 = 64;
/// Users of a container, each another one of the host.
const USERS: u32 = 65_536;

/// A container to be made.
#[derive(Clone, Debug, Default)]
pub(crate) struct ContainerSpec {
    pub(crate) name: String,
    pub(crate) pod_uid: String,
    /// Id of an image that is there.
    pub(crate) image: String,
    /// In place of the image's entry point and arguments, if given.
    pub(crate) command: Vec<String>,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    /// Variables whose value is a secret of podman, by its name.
    pub(crate) secrets: Vec<(String, String)>,
    pub(crate) user: Option<String>,
    pub(crate) working_dir: Option<String>,
    pub(crate) hostname: String,
    pub(crate) network: String,
    /// Folder or file of the host, path in the container, read-only.
    pub(crate) mounts: Vec<(PathBuf, String, bool)>,
    /// Path in the container, size.
    pub(crate) memory_mounts: Vec<(String, u64)>,
    pub(crate) cpu_milli: u64,
    pub(crate) memory_mib: u64,
    /// Names of CDI devices, as in "nvidia.com/gpu=0".
    pub(crate) devices: Vec<String>,
    pub(crate) read_only_root: bool,
    pub(crate) tty: bool,
    pub(crate) dropped_capabilities: Vec<String>,
}

impl ContainerSpec {
    /// The command that makes it.
    pub(super) fn create_arguments(&self, open_files: u64) -> Vec<String> {
        let mut arguments = vec![
            "create".to_owned(),
            format!("--name={}", self.name),
            format!("--label={POD_LABEL}={}", self.pod_uid),
            "--pull=never".to_owned(),
            format!("--network={}", self.network),
            format!("--hostname={}", self.hostname),
            "--no-hosts".to_owned(),
            "--pid=private".to_owned(),
            "--ipc=private".to_owned(),
            "--uts=private".to_owned(),
            "--cgroupns=private".to_owned(),
            // The container's root is nobody on the host.
            format!("--userns=auto:size={USERS}"),
            "--security-opt=no-new-privileges".to_owned(),
            "--cap-drop=NET_RAW".to_owned(),
            "--cap-drop=MKNOD".to_owned(),
            "--cap-drop=AUDIT_WRITE".to_owned(),
            format!("--pids-limit={MAX_PROCESSES}"),
            // podman's defaults may be above the agent's own limits, and then no container starts.
            format!("--ulimit=nofile={open_files}:{open_files}"),
            format!("--ulimit=nproc={MAX_PROCESSES}:{MAX_PROCESSES}"),
            format!("--cpus={}.{:03}", self.cpu_milli / 1_000, self.cpu_milli % 1_000),
            format!("--memory={}m", self.memory_mib),
            format!("--memory-swap={}m", self.memory_mib),
            "--log-driver=k8s-file".to_owned(),
            format!("--log-opt=max-size={LOG_MEGABYTES}mb"),
            // Variables of the host's proxy are the owner's.
            "--http-proxy=false".to_owned(),
            "--image-volume=ignore".to_owned(),
            "--no-healthcheck".to_owned(),
            "--restart=no".to_owned(),
        ];
        arguments.extend(self.dropped_capabilities.iter().map(|name| format!("--cap-drop={name}")));
        arguments.extend(self.user.iter().map(|user| format!("--user={user}")));
        arguments.extend(self.working_dir.iter().map(|dir| format!("--workdir={dir}")));
        arguments.extend(self.read_only_root.then(|| "--read-only".to_owned()));
        arguments.extend(self.tty.then(|| "--tty".to_owned()));
        arguments.extend(self.devices.iter().map(|device| format!("--device={device}")));
        arguments.extend(self.env.iter().map(|(name, value)| format!("--env={name}={value}")));
        let secret = |(name, variable): &(String, String)| format!("--secret={name},type=env,target={variable}");
        arguments.extend(self.secrets.iter().map(secret));
        arguments.extend(self.mounts.iter().map(|(from, to, read_only)| {
            // U: the container's user owns it. z: SELinux lets all containers of the pod read it.
            let mode = if *read_only { "ro" } else { "rw" };
            format!("--volume={}:{to}:{mode},U,z,nosuid,nodev", from.display())
        }));
        let memory = |(to, size): &(String, u64)| format!("--tmpfs={to}:rw,nosuid,nodev,mode=1777,size={size}m");
        arguments.extend(self.memory_mounts.iter().map(memory));
        if !self.command.is_empty() {
            let command = serde_json::to_string(&self.command).expect("strings are JSON");
            arguments.push(format!("--entrypoint={command}"));
        }
        arguments.push("--".to_owned());
        arguments.push(self.image.clone());
        arguments.extend(self.args.iter().cloned());
        arguments
    }
}

/// Which part of a log is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogOptions {
    pub(crate) follow: bool,
    pub(crate) tail: Option<u64>,
    /// As podman reads it: a time of RFC 3339.
    pub(crate) since: Option<String>,
    pub(crate) timestamps: bool,
}

impl LogOptions {
    /// The command that prints it.
    pub(super) fn arguments(&self, name: &str) -> Vec<String> {
        let mut arguments = vec!["logs".to_owned()];
        arguments.extend(self.follow.then(|| "--follow".to_owned()));
        arguments.extend(self.tail.map(|lines| format!("--tail={lines}")));
        arguments.extend(self.since.as_ref().map(|since| format!("--since={since}")));
        arguments.extend(self.timestamps.then(|| "--timestamps".to_owned()));
        arguments.extend(["--".to_owned(), name.to_owned()]);
        arguments
    }
}

/// A command in a running container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExecOptions {
    pub(crate) command: Vec<String>,
    pub(crate) stdin: bool,
    pub(crate) tty: bool,
}

impl ExecOptions {
    /// The command that runs it.
    pub(super) fn arguments(&self, name: &str) -> Vec<String> {
        let mut arguments = vec!["exec".to_owned()];
        arguments.extend(self.stdin.then(|| "--interactive".to_owned()));
        arguments.extend(self.tty.then(|| "--tty".to_owned()));
        arguments.extend(["--".to_owned(), name.to_owned()]);
        arguments.extend(self.command.iter().cloned());
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_of_a_guest_is_taken_for_an_option() {
        let spec = ContainerSpec {
            image: "sha256".to_owned(),
            command: vec!["--privileged".to_owned()],
            args: vec!["--device=/dev/sda".to_owned()],
            env: vec![("A".to_owned(), "--net=host".to_owned())],
            ..ContainerSpec::default()
        };
        let arguments = spec.create_arguments(1_024);
        let end = arguments.iter().position(|argument| argument == "--").expect("the options end");
        assert!(arguments[..end].iter().skip(1).all(|option| option.starts_with("--")), "{arguments:?}");
        for value in ["--privileged", "--device=/dev/sda", "--net=host"] {
            assert!(!arguments[..end].iter().any(|option| option == value), "{arguments:?}");
        }
        assert!(arguments.contains(&r#"--entrypoint=["--privileged"]"#.to_owned()), "{arguments:?}");
        assert_eq!(arguments[end + 1..], ["sha256", "--device=/dev/sda"]);
    }

    #[test]
    fn a_log_is_asked_for_as_kubectl_asks() {
        let options = LogOptions { follow: true, tail: Some(5), since: None, timestamps: true };
        assert_eq!(options.arguments("c"), ["logs", "--follow", "--tail=5", "--timestamps", "--", "c"]);
    }
}
