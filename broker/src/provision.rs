//! Setting up: the federation's authority, identities of brokers, certificates of users. Everything here works on files of
//! whoever holds the authority's key; nothing of it goes over the network.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use comity_runtime::ca::{CaError, CertificateAuthority};
use comity_runtime::identity::{IdentityDir, IdentityError};
use comity_runtime::spiffe::{SpiffeError, SpiffeId, TrustDomain, UserName};

use crate::config::{ConfigError, Settings, ca_dir, identity_dir};

/// How long a certificate lives that is issued on the command line.
pub const USER_VALIDITY: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long a broker's first certificate lives; it renews itself while it runs.
const BROKER_VALIDITY: Duration = Duration::from_secs(30 * 24 * 3600);

/// Why something was not set up.
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
    /// Something is there already.
    #[error("{path} is in use already; choose another directory, or remove it if nobody needs it", path = .path.display())]
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
    /// Its first broker and the members of its group; `bootstrap_admins` need not name the admin below.
    pub settings: Settings,
    /// Name of the first admin.
    pub admin: UserName,
    /// Where the admin's key and certificate go.
    pub admin_out: PathBuf,
}

/// Makes an authority, the first broker's identity and the first admin's certificate.
///
/// # Errors
/// [`ProvisionError`]; what exists is never overwritten.
pub fn init(init: &Init) -> Result<(), ProvisionError> {
    init.settings.check()?;
    free(&identity_dir(&init.data))?;
    free_identity(&init.admin_out)?;
    if CertificateAuthority::exists(&ca_dir(&init.data)) {
        return Err(ProvisionError::Exists { path: ca_dir(&init.data) });
    }
    let ca = CertificateAuthority::create(init.trust_domain.clone(), SystemTime::now())?;
    ca.save(&ca_dir(&init.data))?;
    let admin = SpiffeId::user(init.trust_domain.clone(), init.admin.clone());
    let mut settings = init.settings.clone();
    settings.bootstrap_admins.insert(admin.to_string());
    broker_identity(&ca, &settings, &init.data)?;
    save_identity(&ca, &admin, USER_VALIDITY, &init.admin_out)
}

/// Makes the data directory of another broker of the group: a copy of the authority, and an identity of its own.
///
/// # Errors
/// [`ProvisionError`]; what exists is never overwritten.
pub fn add_identity(data: &Path, id: u64, out: &Path) -> Result<(), ProvisionError> {
    let settings = Settings { id, ..Settings::load(data)? };
    settings.check()?;
    free(&identity_dir(out))?;
    let ca = CertificateAuthority::load(&ca_dir(data))?;
    ca.save(&ca_dir(out))?;
    broker_identity(&ca, &settings, out)
}

/// Makes a user's key and certificate.
///
/// # Errors
/// [`ProvisionError`]; an identity that is there already is not overwritten.
pub fn issue_user(data: &Path, name: &UserName, validity: Duration, out: &Path) -> Result<SpiffeId, ProvisionError> {
    free_identity(out)?;
    let ca = CertificateAuthority::load(&ca_dir(data))?;
    let id = SpiffeId::user(ca.trust_domain().clone(), name.clone());
    save_identity(&ca, &id, validity, out)?;
    Ok(id)
}

fn broker_identity(ca: &CertificateAuthority, settings: &Settings, data: &Path) -> Result<(), ProvisionError> {
    let id = SpiffeId::broker(ca.trust_domain().clone(), settings.id);
    save_identity(ca, &id, BROKER_VALIDITY, &identity_dir(data))?;
    // Last: a directory with settings is whole.
    Ok(settings.save(data)?)
}

fn save_identity(
    ca: &CertificateAuthority,
    id: &SpiffeId,
    validity: Duration,
    out: &Path,
) -> Result<(), ProvisionError> {
    let pem = ca.new_identity(id, &[], validity, SystemTime::now())?;
    IdentityDir::new(out).save(&pem)?;
    Ok(())
}

fn free(path: &Path) -> Result<(), ProvisionError> {
    if path.exists() { Err(ProvisionError::Exists { path: path.to_owned() }) } else { Ok(()) }
}

fn free_identity(path: &Path) -> Result<(), ProvisionError> {
    if IdentityDir::new(path).exists() { Err(ProvisionError::Exists { path: path.to_owned() }) } else { Ok(()) }
}
