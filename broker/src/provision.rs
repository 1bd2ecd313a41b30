//! Offline setup: the certificate authority, broker identities, user certificates. Works only on local files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use comity_runtime::atomic_file;
use comity_runtime::ca::{CaError, CertificateAuthority};
use comity_runtime::host_name::HostName;
use comity_runtime::identity::{IdentityDir, IdentityError};
use comity_runtime::spiffe::{SpiffeError, SpiffeId, TrustDomain, UserName};

use crate::config::{ConfigError, Settings, ca_dir, certificate_hosts, founding_file, identity_dir};
use crate::provision::first_policy::write_first_policy;
use crate::provision::staging::{STAGING_FOLDER, Staging};

pub mod admin_context;
pub mod first_policy;
pub mod join_group;
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

/// Makes an authority, the first broker's identity and the first admin's certificate.
///
/// # Errors
/// [`ProvisionError`]; what exists is never overwritten.
pub fn init(init: &Init) -> Result<(), ProvisionError> {
    Founding::begin(init)?.publish()
}

/// [`init`] with a first policy in the data directory, in which the admin is maintainer.
///
/// # Errors
/// [`ProvisionError`]; what exists is never overwritten.
pub fn found(init: &Init, institution: &str) -> Result<(), ProvisionError> {
    let founding = Founding::begin(init)?;
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
    fn begin(init: &Init) -> Result<Self, ProvisionError> {
        init.settings.check_founding()?;
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
        let ca = CertificateAuthority::create(init.trust_domain.clone(), SystemTime::now())?;
        ca.save(&ca_dir(&staging.path()))?;
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
    let ca = CertificateAuthority::load(&ca_dir(data))?;
    ca.save(&ca_dir(out))?;
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

fn free_identity(path: &Path) -> Result<(), ProvisionError> {
    if IdentityDir::new(path).exists() { Err(ProvisionError::Exists { path: path.to_owned() }) } else { Ok(()) }
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
        // A copy needs only the settings and the CA of the first broker.
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
        let ca = |data: &Path| std::fs::read(ca_dir(data).join("ca.pem")).unwrap();
        assert_eq!(ca(&out), ca(&first));
    }
}
