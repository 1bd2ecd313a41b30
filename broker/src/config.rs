//! A broker's validated configuration: [`Settings`] from `broker.json`, plus the flags of `run`.

#[cfg(test)]
mod fuzz_settings;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use comity_runtime::atomic_file::{self, FileError};
use comity_runtime::ca::CertificateAuthority;
use comity_runtime::host_name::HostName;
use comity_runtime::identity::IdentityDir;
use comity_runtime::private_files::{self, NotPrivate};
use comity_runtime::spiffe::SpiffeId;
use comity_runtime::tls::BrokerEndpoints;
use serde::{Deserialize, Serialize};

use crate::audit_collector::AuditCollector;
use crate::group::{MemberAddress, Timing};

/// Name of the settings file in a data directory.
pub(crate) const SETTINGS_FILE: &str = "broker.json";
/// Bytes of the settings file that are read.
const MAX_SETTINGS_BYTES: u64 = 64 << 10;
/// Maximum founding members: more voters slow down each write and add little safety.
const MAX_MEMBERS: usize = 7;
/// Maximum further names of a broker; with those of its addresses they fit into a certificate.
const MAX_HOSTS: usize = 8;
/// Names under which programs on the same machine reach a broker.
const LOCAL_HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// Port of metrics and probes, on the loopback only: it has no authentication.
pub(crate) const ADMIN_PORT: u16 = 7480;

/// Why a configuration is refused. One sentence each.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// An invalid value.
    #[error("{field} {value:?} is refused: {reason}")]
    Value {
        /// Flag or field.
        field: &'static str,
        /// The value given.
        value: String,
        /// The error and the remedy.
        reason: String,
    },
    /// The data directory was never set up.
    #[error(
        "{path} holds no broker: `comity-broker up` begins a new federation, `comity-broker up --join broker.token` \
         adds a broker to one",
        path = .path.display()
    )]
    NotInitialised {
        /// The data directory.
        path: PathBuf,
    },
    /// The settings file cannot be parsed.
    #[error("{path} is not a settings file of this release: {reason}", path = .path.display())]
    Settings {
        /// The file.
        path: PathBuf,
        /// The parse error.
        reason: String,
    },
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Other users can read or change a secret.
    #[error(transparent)]
    NotPrivate(#[from] NotPrivate),
}

impl ConfigError {
    pub(crate) fn value(field: &'static str, value: impl ToString, reason: impl Into<String>) -> Self {
        Self::Value { field, value: value.to_string(), reason: reason.into() }
    }
}

/// A broker's permanent settings, in `broker.json` of its data directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Its number, from 1.
    pub id: u64,
    /// Founding members; later, the voters. A broker that is new or lost its log looks for its group at these
    /// addresses. One that is not among the founders waits for `comity raft add-learner`.
    pub members: BTreeMap<u64, MemberAddress>,
    /// SPIFFE ids that may apply policy while no bundle is in force.
    pub bootstrap_admins: BTreeSet<String>,
    /// Further names and addresses under which clients reach this broker, such as a load balancer's.
    pub hosts: BTreeSet<HostName>,
}

impl Settings {
    fn file(data: &Path) -> PathBuf {
        data.join(SETTINGS_FILE)
    }

    /// Reads and checks the settings.
    ///
    /// # Errors
    /// [`ConfigError`] if the file is missing or invalid.
    pub fn load(data: &Path) -> Result<Self, ConfigError> {
        let path = Self::file(data);
        let bytes = atomic_file::read_bounded(&path, MAX_SETTINGS_BYTES).map_err(|error| {
            if error.is_not_found() { ConfigError::NotInitialised { path: data.to_owned() } } else { error.into() }
        })?;
        Self::parse(&path, &bytes)
    }

    fn parse(path: &Path, text: &[u8]) -> Result<Self, ConfigError> {
        let settings: Self = serde_json::from_slice(text)
            .map_err(|error| ConfigError::Settings { path: path.to_owned(), reason: error.to_string() })?;
        settings.check()?;
        Ok(settings)
    }

    /// Checks and writes the settings.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn save(&self, data: &Path) -> Result<(), ConfigError> {
        self.check()?;
        atomic_file::create_private_dir(data)?;
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| ConfigError::Settings { path: Self::file(data), reason: error.to_string() })?;
        Ok(atomic_file::write(&Self::file(data), &text, atomic_file::PRIVATE)?)
    }

    /// Checks that a group can be founded with these settings.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub fn check_founding(&self) -> Result<(), ConfigError> {
        self.check()?;
        if self.members.len().is_multiple_of(2) {
            let reason = format!("want an odd number of founding members up to {MAX_MEMBERS}, best 1 or 3");
            return Err(ConfigError::value("members", self.members.len(), reason));
        }
        if !self.members.contains_key(&self.id) {
            let members: Vec<String> = self.members.keys().map(ToString::to_string).collect();
            let reason = format!("the founding members are {}; name this broker among them", members.join(", "));
            return Err(ConfigError::value("id", self.id, reason));
        }
        Ok(())
    }

    /// Checks broker number, addresses and bootstrap admins.
    ///
    /// # Errors
    /// [`ConfigError::Value`] with the field.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.id == 0 {
            return Err(ConfigError::value("id", 0, "brokers are numbered from 1"));
        }
        if self.members.is_empty() || self.members.len() > MAX_MEMBERS {
            let reason = format!("want 1 to {MAX_MEMBERS} members");
            return Err(ConfigError::value("members", self.members.len(), reason));
        }
        let mut raft_addresses = BTreeSet::new();
        for (id, address) in &self.members {
            // Clients may reach several brokers at the address of one load balancer.
            if !raft_addresses.insert(&address.raft) {
                return Err(ConfigError::value("members", &address.raft, "it is the Raft address of two brokers"));
            }
            if *id == 0 {
                return Err(ConfigError::value("members", id, "brokers are numbered from 1"));
            }
            for endpoint in [&address.raft, &address.client] {
                BrokerEndpoints::new([endpoint])
                    .map_err(|error| ConfigError::value("members", endpoint, error.to_string()))?;
            }
        }
        if self.hosts.len() > MAX_HOSTS {
            return Err(ConfigError::value("host", self.hosts.len(), format!("want at most {MAX_HOSTS} names")));
        }
        for admin in &self.bootstrap_admins {
            let id: SpiffeId = admin.parse().map_err(|error: comity_runtime::spiffe::SpiffeError| {
                ConfigError::value("bootstrap-admins", admin, error.to_string())
            })?;
            if id.as_user().is_none() {
                return Err(ConfigError::value(
                    "bootstrap-admins",
                    admin,
                    "it is not a user; write spiffe://DOMAIN/user/NAME",
                ));
            }
        }
        Ok(())
    }
}

/// The names and addresses in the certificate of a broker with these addresses, beside `given` ones.
pub(crate) fn certificate_hosts<'a>(
    given: &BTreeSet<HostName>,
    own: impl IntoIterator<Item = &'a MemberAddress>,
) -> Vec<HostName> {
    let own = own.into_iter().flat_map(|address| [&address.client, &address.raft]);
    let local = LOCAL_HOSTS.iter().filter_map(|host| host.parse().ok());
    let all: BTreeSet<HostName> =
        own.filter_map(|address| HostName::of_address(address)).chain(local).chain(given.iter().cloned()).collect();
    all.into_iter().collect()
}

/// Parses `1=host:raftport/host:clientport,2=…`.
///
/// # Errors
/// [`ConfigError::Value`] for the first part that is not of this form.
pub fn parse_members(text: &str) -> Result<BTreeMap<u64, MemberAddress>, ConfigError> {
    let mut members = BTreeMap::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let parsed = part.split_once('=').and_then(|(id, addresses)| {
            let (raft, client) = addresses.split_once('/')?;
            let address = MemberAddress { raft: raft.to_owned(), client: client.to_owned() };
            Some((id.parse::<u64>().ok()?, address))
        });
        let Some((id, address)) = parsed else {
            return Err(ConfigError::value(
                "members",
                part,
                "write NUMBER=HOST:RAFTPORT/HOST:CLIENTPORT, separated by commas",
            ));
        };
        if members.insert(id, address).is_some() {
            return Err(ConfigError::value("members", part, "its number comes twice"));
        }
    }
    Ok(members)
}

/// The configuration in force.
#[derive(Debug, Clone)]
pub struct Config {
    /// Data directory of this broker: keys, settings, log, snapshots.
    pub data: PathBuf,
    /// Directory of an authority that something else keeps current; `None` for that in `data`.
    pub ca: Option<PathBuf>,
    /// Contents of `broker.json`.
    pub settings: Settings,
    /// Listen address for agents and users.
    pub client_listen: SocketAddr,
    /// Listen address for other brokers.
    pub raft_listen: SocketAddr,
    /// Listen address for metrics and probes; without authentication.
    pub admin_listen: SocketAddr,
    /// Validity of cluster certificates.
    pub cluster_certificates: Duration,
    /// Validity of user certificates.
    pub user_certificates: Duration,
    /// Validity of this broker's own certificates.
    pub broker_certificates: Duration,
    /// Raft's timers.
    pub timing: Timing,
    /// Log entries between two snapshots.
    pub snapshot_every: u64,
    /// File with credentials for the policy's repository.
    pub policy_credentials: Option<PathBuf>,
    /// PEM file with further authorities of the policy's repository.
    pub policy_ca: Option<PathBuf>,
    /// File with the private key for the policy's repository over SSH.
    pub policy_ssh_key: Option<PathBuf>,
    /// File with the keys of servers of the policy's repository over SSH.
    pub policy_known_hosts: Option<PathBuf>,
    /// Where the leader sends the audit log.
    pub audit_collector: Option<AuditCollector>,
    /// File with credentials for registries of the policy.
    pub policy_registry_config: Option<PathBuf>,
    /// PEM file with the keys that sign artifacts with the policy.
    pub policy_oci_key: Option<PathBuf>,
}

impl Config {
    /// The default configuration of a data directory. Listens on the ports in this broker's entry of `members`.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(data: &Path) -> Result<Self, ConfigError> {
        let settings = Settings::load(data)?;
        Ok(Self::new(data, settings))
    }

    /// The default configuration with `settings`.
    #[must_use]
    pub fn new(data: &Path, settings: Settings) -> Self {
        let own = settings.members.get(&settings.id);
        let listen = |address: Option<&String>, fallback: u16| {
            let port = address.and_then(|address| address.rsplit_once(':')?.1.parse().ok()).unwrap_or(fallback);
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))
        };
        Self {
            client_listen: listen(own.map(|own| &own.client), 7443),
            raft_listen: listen(own.map(|own| &own.raft), 7444),
            admin_listen: SocketAddr::from((Ipv4Addr::LOCALHOST, ADMIN_PORT)),
            cluster_certificates: Duration::from_secs(24 * 3600),
            user_certificates: Duration::from_secs(30 * 24 * 3600),
            broker_certificates: Duration::from_secs(7 * 24 * 3600),
            timing: Timing::default(),
            snapshot_every: 10_000,
            policy_credentials: None,
            policy_ssh_key: None,
            policy_known_hosts: None,
            audit_collector: None,
            policy_registry_config: None,
            policy_oci_key: None,
            policy_ca: None,
            data: data.to_owned(),
            ca: None,
            settings,
        }
    }

    /// Directory of the authority that issues certificates.
    #[must_use]
    pub fn ca_dir(&self) -> PathBuf {
        self.ca.clone().unwrap_or_else(|| ca_dir(&self.data))
    }

    /// Directory in the data directory for a copy of the authority, if that is elsewhere.
    #[must_use]
    pub fn ca_copy_dir(&self) -> Option<PathBuf> {
        self.ca.as_ref().map(|_| ca_dir(&self.data))
    }

    /// Directory of this broker's key and certificate.
    #[must_use]
    pub fn identity_dir(&self) -> PathBuf {
        identity_dir(&self.data)
    }

    /// Directory of log and snapshots.
    #[must_use]
    pub fn group_dir(&self) -> PathBuf {
        self.data.join("group")
    }

    /// Marker that tells this broker to found its group. `comity-broker init` creates it; founding removes it.
    #[must_use]
    pub fn founding_file(&self) -> PathBuf {
        founding_file(&self.data)
    }

    /// Whether this broker must found its group.
    #[must_use]
    pub fn must_found(&self) -> bool {
        self.founding_file().exists()
    }

    /// Refuses secrets that users other than the owner can read or change.
    ///
    /// # Errors
    /// [`NotPrivate`], which has the command to run.
    pub fn check_private(&self) -> Result<(), NotPrivate> {
        let log = self.group_dir().join("log");
        // A mounted authority has a directory that others may enter, and files that they may not read.
        for path in [self.data.clone(), self.group_dir(), log.clone(), self.identity_dir(), ca_dir(&self.data)] {
            private_files::check(&path)?;
        }
        private_files::check(&CertificateAuthority::key_file(&self.ca_dir()))?;
        private_files::check(&invitation_key_file(&self.data))?;
        private_files::check(&IdentityDir::new(self.identity_dir()).key_file())?;
        private_files::check_all(&log, "wal")
    }

    /// The configuration in force as JSON, for `--dump-config`.
    #[must_use]
    pub fn dump(&self) -> String {
        let shown = serde_json::json!({
            "data": self.data,
            "ca": self.ca_dir(),
            "id": self.settings.id,
            "members": self.settings.members,
            "bootstrap_admins": self.settings.bootstrap_admins,
            "hosts": self.settings.hosts,
            "client_listen": self.client_listen,
            "raft_listen": self.raft_listen,
            "admin_listen": self.admin_listen,
            "cluster_certificates_s": self.cluster_certificates.as_secs(),
            "user_certificates_s": self.user_certificates.as_secs(),
            "broker_certificates_s": self.broker_certificates.as_secs(),
            "snapshot_every": self.snapshot_every,
            "policy_credentials": self.policy_credentials,
            "policy_ca": self.policy_ca,
            "policy_ssh_key": self.policy_ssh_key,
            "policy_known_hosts": self.policy_known_hosts,
            "audit_otlp": self.audit_collector.as_ref().map(AuditCollector::endpoint),
            "audit_otlp_headers": self.audit_collector.as_ref().and_then(AuditCollector::headers_file),
            "audit_otlp_ca": self.audit_collector.as_ref().and_then(AuditCollector::authorities_file),
            "policy_registry_config": self.policy_registry_config,
            "policy_oci_key": self.policy_oci_key,
        });
        format!("{shown:#}")
    }
}

pub(crate) fn ca_dir(data: &Path) -> PathBuf {
    data.join("ca")
}

/// The file from which the secrets of join tokens are derived.
pub(crate) fn invitation_key_file(data: &Path) -> PathBuf {
    data.join("invitation-key")
}

pub(crate) fn founding_file(data: &Path) -> PathBuf {
    data.join("founding")
}

pub(crate) fn identity_dir(data: &Path) -> PathBuf {
    data.join("identity")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn members_are_parsed_and_bad_ones_named() {
        let members = parse_members("1=a.test:7444/a.test:7443, 2=b:1/b:2,3=[::1]:1/[::1]:2").unwrap();
        assert_eq!(members[&2], MemberAddress { raft: "b:1".into(), client: "b:2".into() });
        for bad in ["a:1/a:2", "1=a:1", "x=a:1/a:2", "1=a:1/a:2,1=b:1/b:2"] {
            assert!(parse_members(bad).unwrap_err().to_string().starts_with("members"), "{bad}");
        }
    }

    #[test]
    fn a_certificate_names_the_addresses_of_its_broker_and_the_given_hosts() {
        let members = parse_members("1=b1.example:7444/[2001:db8::7]:7443,2=b2.example:7444/b2.example:7443").unwrap();
        let given = BTreeSet::from(["lb.example".parse().unwrap(), "localhost".parse().unwrap()]);
        let names = certificate_hosts(&given, members.get(&1)).into_iter().map(|name| name.to_string());
        let names: BTreeSet<String> = names.collect();
        let expected = ["b1.example", "2001:db8::7", "lb.example", "localhost", "127.0.0.1", "::1"];
        assert_eq!(names, expected.map(str::to_owned).into());
    }

    #[test]
    fn secrets_that_others_can_read_are_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let home = tempfile::tempdir().unwrap();
        let data = home.path().join("data");
        let members = parse_members("1=127.0.0.1:17444/127.0.0.1:17443").unwrap();
        let settings = Settings { id: 1, members, bootstrap_admins: BTreeSet::new(), hosts: BTreeSet::new() };
        crate::provision::init(&crate::provision::Init {
            data: data.clone(),
            trust_domain: comity_runtime::spiffe::TrustDomain::new("modes.test").unwrap(),
            settings,
            admin: comity_runtime::spiffe::UserName::new("admin").unwrap(),
            admin_out: home.path().join("admin"),
        })
        .unwrap();
        let config = Config::load(&data).unwrap();
        std::fs::create_dir_all(config.group_dir().join("log")).unwrap();
        let wal = config.group_dir().join("log/r-0.wal");
        std::fs::write(&wal, "").unwrap();
        let set = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        for private in [config.group_dir(), config.group_dir().join("log")] {
            set(&private, 0o700);
        }
        set(&wal, 0o600);
        config.check_private().unwrap();
        let key = config.ca_dir().join("tls.key");
        let invitations = invitation_key_file(&data);
        for (path, open, private) in
            [(&key, 0o644, 0o600), (&invitations, 0o644, 0o600), (&wal, 0o604, 0o600), (&data, 0o777, 0o700)]
        {
            set(path, open);
            let error = config.check_private().unwrap_err().to_string();
            assert!(error.contains(&format!("chmod go= {}", path.display())), "{error}");
            set(path, private);
        }
        config.check_private().unwrap();
    }

    #[test]
    fn settings_round_trip_and_are_checked() {
        let home = tempfile::tempdir().unwrap();
        assert!(matches!(Settings::load(home.path()), Err(ConfigError::NotInitialised { .. })));
        let settings = Settings {
            id: 1,
            members: parse_members("1=127.0.0.1:17444/127.0.0.1:17443").unwrap(),
            bootstrap_admins: BTreeSet::from(["spiffe://dev.test/user/admin".to_owned()]),
            hosts: BTreeSet::from(["lb.example.org".parse().unwrap()]),
        };
        settings.save(home.path()).unwrap();
        assert_eq!(Settings::load(home.path()).unwrap(), settings);
        let config = Config::load(home.path()).unwrap();
        assert_eq!((config.client_listen.port(), config.raft_listen.port()), (17443, 17444));
        assert!(config.dump().contains("\"snapshot_every\": 10000"));

        let refused = |change: fn(&mut Settings)| {
            let mut bad = settings.clone();
            change(&mut bad);
            bad.save(home.path()).unwrap_err().to_string()
        };
        assert!(refused(|s| s.id = 0).contains("numbered from 1"));
        assert!(refused(|s| s.members.clear()).contains("want 1 to 7 members"));
        assert!(
            refused(|s| s.hosts = (0..9).map(|n| format!("h{n}").parse().unwrap()).collect()).contains("at most 8")
        );
        let mut even = settings.clone();
        even.members.insert(2, even.members[&1].clone());
        assert!(even.check().unwrap_err().to_string().contains("the Raft address of two brokers"));
        even.members.insert(2, MemberAddress { raft: "b:7444".to_owned(), client: "b:7443".to_owned() });
        assert!(even.check_founding().unwrap_err().to_string().contains("odd number"));
        let other = Settings { id: 9, ..settings.clone() };
        assert!(other.check_founding().unwrap_err().to_string().contains("name this broker among them"));
        assert!(refused(|s| _ = s.bootstrap_admins.insert("root".into())).contains("\"root\""));
        assert!(refused(|s| _ = s.bootstrap_admins.insert("spiffe://td/cluster/a".into())).contains("not a user"));
        assert!(refused(|s| s.members.get_mut(&1).unwrap().raft = "nowhere".into()).contains("no port"));
        std::fs::write(home.path().join("broker.json"), "{\"id\":1,\"surprise\":2}").unwrap();
        assert!(Settings::load(home.path()).unwrap_err().to_string().contains("surprise"));
    }
}
