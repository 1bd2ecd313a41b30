//! The daemons of a control plane and their command lines.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use crate::binaries::Binaries;
use crate::control_plane::{ControlPlaneConfig, ControlPlaneError, Ports, audit_log, file_error};
use crate::daemon::{Daemon, DaemonSpec};
use crate::pki::Authority;
use crate::simulated_node::KWOK_ANNOTATION;

/// The first address of the service network, under which pods would know the API server.
pub(super) const SERVICE_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));
/// The network of Services of every control plane.
pub(crate) const SERVICE_NETWORK: &str = "10.96.0.0/16";
const KWOK_STAGES: &str = include_str!("../../kubernetes/kwok.yaml");

/// A daemon of a control plane, in the order of their start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// The store.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
    /// kwok, which keeps simulated nodes Ready and runs their pods.
    Kwok,
}

impl Component {
    /// The name of its program, log and pid file.
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kwok => "kwok",
        }
    }
}

/// Paths and ports of one control plane.
pub(super) struct Layout<'a> {
    pub(super) config: &'a ControlPlaneConfig,
    pub(super) binaries: &'a Binaries,
    pub(super) authority: &'a Authority,
    pub(super) ports: Ports,
}

impl Layout<'_> {
    /// Starts one daemon.
    pub(super) fn start(&self, component: Component) -> Result<Daemon, ControlPlaneError> {
        let args = match component {
            Component::Etcd => self.etcd(),
            Component::ApiServer => self.api_server()?,
            Component::ControllerManager => self.controller_manager(),
            Component::Scheduler => self.scheduler(),
            Component::Kwok => self.kwok()?,
        };
        let name = component.program();
        let dir = &self.config.dir;
        Daemon::start(DaemonSpec {
            name,
            program: self.binaries.program(name),
            args,
            env: Vec::new(),
            log: dir.join("log").join(format!("{name}.log")),
            pid_file: dir.join("run").join(format!("{name}.pid")),
        })
        .map_err(|source| ControlPlaneError::Start {
            cluster: self.config.name.clone(),
            component: name,
            source,
        })
    }

    fn etcd(&self) -> Vec<String> {
        let client = format!("https://127.0.0.1:{}", self.ports.etcd);
        let peer = format!("https://127.0.0.1:{}", self.ports.etcd_peer);
        let mut args = vec![
            "--name=etcd".into(),
            format!("--data-dir={}", self.config.dir.join("etcd").display()),
            "--log-level=warn".into(),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=etcd={peer}"),
            // Every user of the machine can reach loopback, and etcd holds secrets.
            "--client-cert-auth".into(),
            "--peer-client-cert-auth".into(),
        ];
        for prefix in ["", "peer-"] {
            args.push(self.file(&format!("--{prefix}trusted-ca-file"), "ca.crt"));
            args.push(self.file(&format!("--{prefix}cert-file"), "etcd.crt"));
            args.push(self.file(&format!("--{prefix}key-file"), "etcd.key"));
        }
        if !self.config.keep_state {
            args.push("--unsafe-no-fsync".into());
        }
        args
    }

    fn api_server(&self) -> Result<Vec<String>, ControlPlaneError> {
        let mut args = vec![
            format!("--etcd-servers=https://127.0.0.1:{}", self.ports.etcd),
            self.file("--etcd-cafile", "ca.crt"),
            self.file("--etcd-certfile", "etcd-client.crt"),
            self.file("--etcd-keyfile", "etcd-client.key"),
            "--bind-address=127.0.0.1".into(),
            "--advertise-address=127.0.0.1".into(),
            format!("--secure-port={}", self.ports.api_server),
            // A loopback address is refused as an endpoint; nothing here looks for one.
            "--endpoint-reconciler-type=none".into(),
            self.file("--tls-cert-file", "apiserver.crt"),
            self.file("--tls-private-key-file", "apiserver.key"),
            self.file("--client-ca-file", "ca.crt"),
            "--authorization-mode=Node,RBAC".into(),
            // NodeRestriction comes on top of the defaults: LimitRanger, ResourceQuota, PodSecurity and so on.
            "--enable-admission-plugins=NodeRestriction".into(),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".into(),
            self.file("--service-account-key-file", "sa.pub"),
            self.file("--service-account-signing-key-file", "sa.key"),
            format!("--service-cluster-ip-range={SERVICE_NETWORK}"),
            "--allow-privileged=true".into(),
            "--enable-priority-and-fairness=false".into(),
            "--profiling=false".into(),
        ];
        if let Some(user) = &self.config.audited_user {
            let policy = self.config.dir.join("audit-policy.yaml");
            let rules = format!(
                "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n  \
                 - {{level: Metadata, users: [{user}]}}\n  - {{level: None}}\n"
            );
            fs::write(&policy, rules).map_err(|source| file_error(self.config, &policy, source))?;
            args.push(format!("--audit-policy-file={}", policy.display()));
            args.push(format!("--audit-log-path={}", audit_log(self.config).display()));
        }
        Ok(args)
    }

    fn controller_manager(&self) -> Vec<String> {
        vec![
            self.file("--kubeconfig", "controller-manager.kubeconfig"),
            // It needs no port because nobody queries it.
            "--secure-port=0".into(),
            "--leader-elect=false".into(),
            "--use-service-account-credentials=true".into(),
            self.file("--service-account-private-key-file", "sa.key"),
            self.file("--root-ca-file", "ca.crt"),
            self.file("--cluster-signing-cert-file", "ca.crt"),
            self.file("--cluster-signing-key-file", "ca.key"),
            "--kube-api-qps=200".into(),
            "--kube-api-burst=400".into(),
            "--profiling=false".into(),
        ]
    }

    fn scheduler(&self) -> Vec<String> {
        vec![
            self.file("--kubeconfig", "scheduler.kubeconfig"),
            "--secure-port=0".into(),
            "--leader-elect=false".into(),
            "--profiling=false".into(),
        ]
    }

    fn kwok(&self) -> Result<Vec<String>, ControlPlaneError> {
        let stages = self.config.dir.join("kwok.yaml");
        fs::write(&stages, KWOK_STAGES).map_err(|source| file_error(self.config, &stages, source))?;
        let (annotation, value) = KWOK_ANNOTATION;
        Ok(vec![
            self.file("--kubeconfig", "kwok.kubeconfig"),
            format!("--config={}", stages.display()),
            "--manage-all-nodes=false".into(),
            format!("--manage-nodes-with-annotation-selector={annotation}={value}"),
            "--node-lease-duration-seconds=40".into(),
            "--node-ip=127.0.0.1".into(),
            // Loopback addresses for pods: a test can listen where a simulated pod would.
            "--cidr=127.77.0.0/16".into(),
        ])
    }

    fn file(&self, flag: &str, name: &str) -> String {
        format!("{flag}={}", self.authority.path(name).display())
    }
}
