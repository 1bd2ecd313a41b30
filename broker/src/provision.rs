//! Offline setup: the certificate authority, broker identities, user certificates. Works only on local files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use comity_runtime::atomic_file;
use comity_runtime::ca::{CaError, CertificateAuthority, DEFAULT_INTERMEDIATE_VALIDITY, PreviousRoot, RootAuthority};
use comity_runtime::entropy::SystemEntropy;
use comity_runtime::host_name::HostName;
use comity_runtime::identity::{IdentityDir, IdentityError};
use comity_runtime::spiffe::{SpiffeError, SpiffeId, TrustDomain, UserName};

use crate::config::{ConfigError, SETTINGS_FILE, Settings, ca_dir, certificate_hosts, founding_file, identity_dir};
use crate::provision::first_policy::write_first_policy;
use crate::provision::invitation_key::InvitationKey;
use crate::provision::staging::{STAGING_FOLDER, Staging};

pub mod admin_context;
pub mod authority_commands;
pub mod first_policy;
pub mod invitation_key;
pub mod join_group;
pub mod revoked_user;
pub mod sealed_authority;
mod staging;
pub mod up_defaults;

/// Validity of user certificates issued on the command line.
pub const USER_VALIDITY: Duration = Duration::from_secs(30 * 24 * 3600);
/// Validity of a broker's first certificate; a running broker renews its own.
const BROKER_VALIDITY: Duration = Duration::from_secs(30 * 24 * 3600);
/// Contents of the founding file.
const FOUNDING: &[u8] = b"This broker founds its group at its first start, and then removes this file.\n";

/// Why setup failed.
#[derive(Debug, thiserror::Error)]
pub enum ProvisionError {
    /// The settings.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The authority.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// An identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A name.
    #[error(transparent)]
    Name(#[from] SpiffeError),
    /// The root has no place.
    #[error("the root cannot be kept in {path}: {source}; give another directory with --root-out", path = .path.display())]
    RootPlace {
        /// Its directory.
        path: PathBuf,
        /// The error.
        #[source]
        source: CaError,
    },
    /// The directory of a root has none.
    #[error("{path} has no root: {source}; give the directory that `comity-broker up` (--root-out) or \
        `comity-broker ca root` (--out) made", path = .path.display())]
    NotARoot {
        /// The directory.
        path: PathBuf,
        /// The error.
        #[source]
        source: CaError,
    },
    /// The target exists.
    #[error("{path} is in use already; choose another directory, or remove it if nobody needs \
        it", path = .path.display())]
    Exists {
        /// Where.
        path: PathBuf,
    },
}

/// A new federation.
#[derive(Debug, Clone)]
pub struct Init {
    /// Data directory of its first broker.
    pub data: PathBuf,
    /// Its trust domain.
    pub trust_domain: TrustDomain,
    /// The first broker and the members of its group. `bootstrap_admins` need not contain the admin below.
    pub settings: Settings,
    /// Name of the first admin.
    pub admin: UserName,
    /// Where the admin's key and certificate go. Below `data`, they appear together with it.
    pub admin_out: PathBuf,
}

/// What signs the certificates of a new federation.
#[derive(Debug, Clone)]
pub enum AuthoritySource {
    /// A root in this directory, made unless it is there, and a new intermediate. No broker needs the directory.
    Root(PathBuf),
    /// An intermediate of another authority, in this directory: `tls.crt`, `tls.key`, `ca.crt`.
    Intermediate(PathBuf),
}

impl AuthoritySource {
    /// The directory for a root beside a data directory: `DATA-root`.
    #[must_use]
    pub fn root_beside(data: &Path) -> PathBuf {
        let mut name = data.file_name().unwrap_or_default().to_owned();
        name.push("-root");
        data.with_file_name(name)
    }

    fn check(&self, init: &Init) -> Result<(), ConfigError> {
        match self {
            Self::Root(dir) if dir.starts_with(&init.data) => {
                let reason = "it is in the broker's data directory; the root's key must not be on a broker";
                Err(ConfigError::value("root-out", dir.display(), reason))
            }
            _ => Ok(()),
        }
    }

    /// The authority of the first broker.
    fn authority(&self, trust_domain: &TrustDomain) -> Result<CertificateAuthority, ProvisionError> {
        let now = SystemTime::now();
        match self {
            Self::Root(dir) => {
                let misplaced = |source| ProvisionError::RootPlace { path: dir.clone(), source };
                let root = if RootAuthority::exists(dir) {
                    RootAuthority::load(dir).map_err(misplaced)?
                } else {
                    let root = RootAuthority::create(trust_domain.clone(), now)?;
                    root.save(dir).map_err(misplaced)?;
                    root
                };
                check_domain("root-out", dir, root.trust_domain(), trust_domain)?;
                Ok(root.intermediate(DEFAULT_INTERMEDIATE_VALIDITY, PreviousRoot::Trusted, now)?)
            }
            Self::Intermediate(dir) => {
                let authority = CertificateAuthority::load(dir)?;
                check_domain("ca", dir, authority.trust_domain(), trust_domain)?;
                Ok(authority)
            }
        }
    }
}

fn check_domain(
    field: &'static str,
    dir: &Path,
    found: &TrustDomain,
    expected: &TrustDomain,
) -> Result<(), ConfigError> {
    if found == expected {
        return Ok(());
    }
    let reason = format!("it is of trust domain '{found}', and the federation of '{expected}'; name that of this one");
    Err(ConfigError::value(field, dir.display(), reason))
}

/// Makes a root beside the data directory, an intermediate, the first broker's identity and the first admin's
/// certificate.
///
/// # Errors
/// [`ProvisionError`]; what exists is never overwritten.
pub fn init(init: &Init) -> Result<(), ProvisionError> {
    init_with(init, &AuthoritySource::Root(AuthoritySource::root_beside(&init.data)))
}

/// [`init`] with another place for the root, or with an authority that exists.
///
/// # Errors
/// [`ProvisionError`]; what exists is never overwritten.
pub fn init_with(init: &Init, authority: &AuthoritySource) -> Result<(), ProvisionError> {
    Founding::begin(init, authority)?.publish()
}

/// [`init_with`] with a first policy in the data directory, in which the admin is maintainer.
///
/// # Errors
/// [`ProvisionError`]; what exists is never overwritten.
pub fn found(init: &Init, authority: &AuthoritySource, institution: &str) -> Result<(), ProvisionError> {
    let founding = Founding::begin(init, authority)?;
    write_first_policy(&founding.staging.path(), institution, &founding.admin)?;
    founding.publish()
}

/// Completes a setup that was killed in its last step.
///
/// # Errors
/// [`ProvisionError`].
pub fn complete_setup(data: &Path) -> Result<(), ProvisionError> {
    Ok(Staging::complete(data).map_err(ConfigError::from)?)
}

/// A new federation before its data directory is published.
struct Founding {
    staging: Staging,
    ca: CertificateAuthority,
    settings: Settings,
    admin: SpiffeId,
}

impl Founding {
    fn begin(init: &Init, source: &AuthoritySource) -> Result<Self, ProvisionError> {
        init.settings.check_founding()?;
        source.check(init)?;
        if init.admin_out == init.data {
            let reason = "it is the broker's data directory; give the admin's files another one";
            return Err(ConfigError::value("admin-out", init.admin_out.display(), reason).into());
        }
        empty(&init.data)?;
        free_identity(&init.admin_out)?;
        let admin = SpiffeId::user(init.trust_domain.clone(), init.admin.clone());
        let mut settings = init.settings.clone();
        settings.bootstrap_admins.insert(admin.to_string());
        let staging = Staging::begin(&init.data, &[]).map_err(ConfigError::from)?;
        let ca = source.authority(&init.trust_domain)?;
        ca.save(&ca_dir(&staging.path()))?;
        InvitationKey::draw(&SystemEntropy).save(&staging.path()).map_err(ConfigError::from)?;
        atomic_file::write(&founding_file(&staging.path()), FOUNDING, atomic_file::PRIVATE)
            .map_err(ConfigError::from)?;
        let admin_out = match init.admin_out.strip_prefix(&init.data) {
            Ok(below) => staging.path().join(below),
            Err(_) => init.admin_out.clone(),
        };
        save_user(&ca, &admin, USER_VALIDITY, &admin_out)?;
        Ok(Self { staging, ca, settings, admin })
    }

    fn publish(self) -> Result<(), ProvisionError> {
        broker_identity(&self.ca, &self.settings, &self.staging.path())?;
        Ok(self.staging.publish(&[]).map_err(ConfigError::from)?)
    }
}

/// Another broker of a group.
#[derive(Debug, Clone)]
pub struct NewBroker {
    /// Its number.
    pub id: u64,
    /// Further names for its certificate; empty: those of the broker whose settings it gets, such as a load balancer's.
    pub hosts: BTreeSet<HostName>,
}

impl NewBroker {
    fn settings(&self, source: Settings) -> Settings {
        let hosts = if self.hosts.is_empty() { source.hosts } else { self.hosts.clone() };
        Settings { id: self.id, hosts, ..source }
    }
}

/// Creates the data directory of another broker of the group: a copy of the authority and a new identity.
///
/// # Errors
/// [`ProvisionError`]; what exists is never overwritten.
pub fn add_identity(data: &Path, new: &NewBroker, out: &Path) -> Result<(), ProvisionError> {
    let settings = new.settings(Settings::load(data)?);
    settings.check()?;
    free(&identity_dir(out))?;
    let (ca, invitation_key) = (CertificateAuthority::load(&ca_dir(data))?, InvitationKey::load(data)?);
    ca.save(&ca_dir(out))?;
    invitation_key.save(out).map_err(ConfigError::from)?;
    broker_identity(&ca, &settings, out)
}

/// [`add_identity`] for init containers: leaves an existing broker in `out` unchanged, and completes an interrupted
/// run. Returns whether the broker was created.
///
/// # Errors
/// [`ProvisionError`]; another broker's directory is an error.
pub fn add_identity_once(data: &Path, new: &NewBroker, out: &Path) -> Result<bool, ProvisionError> {
    match Settings::load(out) {
        Ok(settings) if settings.id == new.id => return Ok(false),
        Ok(_) => return Err(ProvisionError::Exists { path: out.to_owned() }),
        // The settings are written last: without them, no broker has run here.
        Err(ConfigError::NotInitialised { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let source = Settings::load(data)?;
    let founds = source.id == new.id && founding_file(data).exists();
    let settings = new.settings(source);
    settings.check()?;
    let (from, to) = (ca_dir(data), ca_dir(out));
    let ca = if CertificateAuthority::exists(&to) {
        CertificateAuthority::load(&to)?
    } else {
        let ca = CertificateAuthority::load(&from)?;
        ca.save(&to)?;
        ca
    };
    InvitationKey::load(data)?.save(out).map_err(ConfigError::from)?;
    if founds {
        atomic_file::write(&founding_file(out), FOUNDING, atomic_file::PRIVATE).map_err(ConfigError::from)?;
    }
    broker_identity(&ca, &settings, out)?;
    Ok(true)
}

/// The steps that follow [`add_identity`], one a line. A broker that is not among the members gets the log only
/// after a maintainer adds it.
#[must_use]
pub fn next_steps(settings: &Settings, out: &Path) -> Vec<String> {
    let (id, out) = (settings.id, out.display());
    let mut steps =
        vec![format!("carry {out} to the machine of broker {id}, and there: comity-broker run --data {out}")];
    if !settings.members.contains_key(&id) {
        steps.push(format!(
            "broker {id} is no member yet; once it runs, as a maintainer: comity raft add-learner {id} --raft-address \
             HOST:7444 --client-address HOST:7443 && comity raft promote {id}"
        ));
    }
    steps
}

/// Makes a user's key and certificate.
///
/// # Errors
/// [`ProvisionError`]; an existing identity is not overwritten.
pub fn issue_user(data: &Path, name: &UserName, validity: Duration, out: &Path) -> Result<SpiffeId, ProvisionError> {
    free_identity(out)?;
    let ca = CertificateAuthority::load(&ca_dir(data))?;
    let id = SpiffeId::user(ca.trust_domain().clone(), name.clone());
    save_user(&ca, &id, validity, out)?;
    Ok(id)
}

/// Creates this broker's key and certificate unless readable ones exist.
///
/// # Errors
/// [`ProvisionError`].
pub(crate) fn ensure_identity(
    ca: &CertificateAuthority,
    settings: &Settings,
    data: &Path,
) -> Result<(), ProvisionError> {
    if IdentityDir::new(identity_dir(data)).load().is_ok() { Ok(()) } else { save_broker(ca, settings, data) }
}

pub(crate) fn broker_identity(
    ca: &CertificateAuthority,
    settings: &Settings,
    data: &Path,
) -> Result<(), ProvisionError> {
    save_broker(ca, settings, data)?;
    // Written last: a directory with settings is complete.
    Ok(settings.save(data)?)
}

fn save_broker(ca: &CertificateAuthority, settings: &Settings, data: &Path) -> Result<(), ProvisionError> {
    let id = SpiffeId::broker(ca.trust_domain().clone(), settings.id);
    let hosts = certificate_hosts(&settings.hosts, settings.members.get(&settings.id));
    let pem = ca.new_identity(&id, &hosts, BROKER_VALIDITY, SystemTime::now())?;
    IdentityDir::new(identity_dir(data)).save(&pem)?;
    Ok(())
}

fn save_user(ca: &CertificateAuthority, id: &SpiffeId, validity: Duration, out: &Path) -> Result<(), ProvisionError> {
    let pem = ca.new_identity(id, &[], validity, SystemTime::now())?;
    IdentityDir::new(out).save(&pem)?;
    Ok(())
}

fn free(path: &Path) -> Result<(), ProvisionError> {
    if path.exists() { Err(ProvisionError::Exists { path: path.to_owned() }) } else { Ok(()) }
}

/// A directory that holds nothing, or does not exist yet; a fresh file system has "lost+found", and a setup that was
/// killed leaves its folder.
pub(crate) fn empty(path: &Path) -> Result<(), ProvisionError> {
    let mut entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    if entries.any(|entry| entry.file_name() != "lost+found" && entry.file_name() != STAGING_FOLDER) {
        Err(ProvisionError::Exists { path: path.to_owned() })
    } else {
        Ok(())
    }
}

/// A directory without an identity, that is not a broker's.
fn free_identity(path: &Path) -> Result<(), ProvisionError> {
    if IdentityDir::new(path).exists() || path.join(SETTINGS_FILE).exists() {
        Err(ProvisionError::Exists { path: path.to_owned() })
    } else {
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::config::parse_members;

    #[test]
    fn a_broker_is_made_once_and_a_broken_start_is_finished() {
        let home = tempfile::tempdir().unwrap();
        let (first, out) = (home.path().join("first"), home.path().join("out"));
        let init = Init {
            data: first.clone(),
            trust_domain: TrustDomain::new("dev.test").unwrap(),
            settings: Settings {
                id: 1,
                members: parse_members("1=a:7444/a:7443,2=b:7444/b:7443,3=c:7444/c:7443").unwrap(),
                bootstrap_admins: BTreeSet::new(),
                hosts: BTreeSet::from(["lb.example".parse().unwrap()]),
            },
            admin: UserName::new("ingrid").unwrap(),
            admin_out: home.path().join("ingrid"),
        };
        super::init(&init).unwrap();
        let into_data = issue_user(&first, &init.admin, USER_VALIDITY, &first);
        assert!(matches!(into_data, Err(ProvisionError::Exists { .. })));
        // A copy needs only the settings, the authority and the invitation key of the first broker.
        std::fs::remove_dir_all(identity_dir(&first)).unwrap();

        let broker = |id| NewBroker { id, hosts: BTreeSet::new() };
        assert!(add_identity_once(&first, &broker(2), &out).unwrap());
        let (_, identity) = IdentityDir::new(identity_dir(&out)).load().unwrap();
        assert!(["b", "lb.example", "localhost"].iter().all(|name| identity.hosts().contains(&name.parse().unwrap())));
        assert!(!identity.hosts().contains(&"a".parse().unwrap()));
        let certificate = || std::fs::read(identity_dir(&out).join("cert.pem")).unwrap();
        let made = certificate();
        assert_eq!(Settings::load(&out).unwrap().id, 2);
        let steps = next_steps(&Settings::load(&out).unwrap(), &out);
        assert_eq!(steps.len(), 1, "{steps:?}");
        assert!(!add_identity_once(&first, &broker(2), &out).unwrap());
        assert_eq!(certificate(), made);
        assert!(matches!(add_identity_once(&first, &broker(3), &out), Err(ProvisionError::Exists { .. })));

        // Killed before the settings were written.
        std::fs::remove_file(out.join("broker.json")).unwrap();
        assert!(add_identity_once(&first, &broker(2), &out).unwrap());
        assert_ne!(certificate(), made);
        let fourth = home.path().join("fourth");
        let public = BTreeSet::from(["fourth.example".parse().unwrap()]);
        add_identity(&first, &NewBroker { id: 4, hosts: public.clone() }, &fourth).unwrap();
        assert_eq!(Settings::load(&fourth).unwrap().hosts, public);
        let steps = next_steps(&Settings::load(&fourth).unwrap(), &fourth);
        assert!(steps[1].contains("comity raft add-learner 4 --raft-address HOST:7444"), "{steps:?}");
        assert!(steps[1].contains("comity raft promote 4"), "{steps:?}");
        let names = ["ca/tls.crt", "ca/tls.key", "ca/ca.crt", "invitation-key"];
        let files = |data: &Path| names.map(|name| std::fs::read(data.join(name)).unwrap());
        assert_eq!(files(&out), files(&first));
    }

    fn alone(home: &Path) -> Init {
        Init {
            data: home.join("data"),
            trust_domain: TrustDomain::new("dev.test").unwrap(),
            settings: Settings {
                id: 1,
                members: parse_members("1=a:7444/a:7443").unwrap(),
                bootstrap_admins: BTreeSet::new(),
                hosts: BTreeSet::new(),
            },
            admin: UserName::new("ingrid").unwrap(),
            admin_out: home.join("ingrid"),
        }
    }

    fn files_below(dir: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
    }

    #[test]
    fn stolen_broker_disk_holds_no_root_key() {
        let home = tempfile::tempdir().unwrap();
        let init = alone(home.path());
        super::init(&init).unwrap();
        let root = std::fs::read_to_string(home.path().join("data-root/root-key.pem")).unwrap();
        let secret = root.lines().nth(1).unwrap().as_bytes().to_vec();
        let files = [files_below(&init.data), files_below(&init.admin_out)].concat();
        assert!(files.iter().any(|file| file.ends_with("ca/tls.key")), "{files:?}");
        for file in files {
            let content = std::fs::read(&file).unwrap();
            assert!(!content.windows(secret.len()).any(|window| window == secret), "{}", file.display());
        }
        let ca = CertificateAuthority::load(&ca_dir(&init.data)).unwrap();
        assert!(ca.not_after() <= SystemTime::now() + DEFAULT_INTERMEDIATE_VALIDITY);

        let again = Init { data: home.path().join("other"), admin_out: home.path().join("other-admin"), ..init };
        let inside = AuthoritySource::Root(again.data.join("root"));
        let error = init_with(&again, &inside).unwrap_err().to_string();
        assert!(error.contains("root-out") && error.contains("must not be on a broker"), "{error}");
    }

    #[test]
    fn a_root_that_is_there_is_used_if_it_is_of_the_federation() {
        let home = tempfile::tempdir().unwrap();
        let init = alone(home.path());
        let root = RootAuthority::create(init.trust_domain.clone(), SystemTime::now()).unwrap();
        let source = AuthoritySource::Root(home.path().join("root"));
        root.save(&home.path().join("root")).unwrap();
        init_with(&init, &source).unwrap();
        assert_eq!(CertificateAuthority::load(&ca_dir(&init.data)).unwrap().root_sha256(), root.sha256());

        let mut other = alone(&home.path().join("other"));
        other.trust_domain = TrustDomain::new("other.test").unwrap();
        let error = init_with(&other, &source).unwrap_err().to_string();
        assert!(error.contains("'dev.test'") && error.contains("'other.test'"), "{error}");
        // An intermediate that another authority made.
        let external = AuthoritySource::Intermediate(ca_dir(&init.data));
        let third = alone(&home.path().join("third"));
        init_with(&third, &external).unwrap();
        assert_eq!(CertificateAuthority::load(&ca_dir(&third.data)).unwrap().root_sha256(), root.sha256());
        assert!(!home.path().join("third/data-root").exists());
    }
}
