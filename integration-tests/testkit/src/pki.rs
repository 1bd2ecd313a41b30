//! Creates a cluster's certificate authority and the certificates of its daemons.

use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

/// Lifetime of certificates, long enough for kept control planes.
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// Tolerance for clocks that lag.
const BACKDATE: Duration = Duration::from_secs(3600);

/// The names under which an API server answers besides its addresses.
const API_SERVER_NAMES: [&str; 5] =
    ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"];

/// Why certificates could not be created or read.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// rcgen refused.
    #[error("cannot make the certificate of {name}")]
    Make {
        /// Name of the certificate.
        name: String,
        /// The cause.
        #[source]
        source: rcgen::Error,
    },
    /// A file could not be written or read.
    #[error("cannot use {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// A certificate and its key, in PEM.
pub(crate) struct Identity {
    pub(crate) certificate_pem: String,
    pub(crate) key_pem: String,
}

/// The authority of one cluster and the folder with everything it signs.
pub(crate) struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    ca_pem: String,
}

impl Authority {
    /// Reads the authority in `folder`, or creates it together with a service account key pair (`sa.key`, `sa.pub`).
    pub(crate) fn open(folder: &Path) -> Result<Self, PkiError> {
        fs::create_dir_all(folder).map_err(|source| PkiError::File { path: folder.to_owned(), source })?;
        let (certificate, key) = (folder.join("ca.crt"), folder.join("ca.key"));
        let make = |source| PkiError::Make { name: "the authority".into(), source };
        if !(certificate.exists() && key.exists()) {
            let pair = KeyPair::generate().map_err(make)?;
            let signed = authority_params().map_err(make)?.self_signed(&pair).map_err(make)?;
            write_private(&key, &pair.serialize_pem())?;
            write_private(&certificate, &signed.pem())?;
            let service_accounts = KeyPair::generate().map_err(make)?;
            write_private(&folder.join("sa.key"), &service_accounts.serialize_pem())?;
            write_private(&folder.join("sa.pub"), &service_accounts.public_key_pem())?;
        }
        let ca_pem = read(&certificate)?;
        let pair = KeyPair::from_pem(&read(&key)?).map_err(make)?;
        let issuer = Issuer::from_ca_cert_pem(&ca_pem, pair).map_err(make)?;
        Ok(Self { folder: folder.to_owned(), issuer, ca_pem })
    }

    /// The authority's certificate.
    pub(crate) fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// The path of a file in the authority's folder.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    /// Creates the serving certificate of an API server: `<name>.crt` and `<name>.key`.
    pub(crate) fn api_server(&self, name: &str, addresses: &[IpAddr]) -> Result<(), PkiError> {
        let mut names: Vec<SanType> = addresses.iter().copied().map(SanType::IpAddress).collect();
        for dns in API_SERVER_NAMES {
            names
                .push(SanType::DnsName(dns.try_into().map_err(|source| PkiError::Make { name: name.into(), source })?));
        }
        self.sign(name, "kube-apiserver", None, names).map(drop)
    }

    /// Makes a certificate for a client (and for a server at a loopback address, as etcd's peers
    /// are both): `<file>.crt` and `<file>.key`, for `user` in `group`.
    pub(crate) fn client(&self, file: &str, user: &str, group: Option<&str>) -> Result<Identity, PkiError> {
        let loopback = SanType::IpAddress(IpAddr::from([127, 0, 0, 1]));
        self.sign(file, user, group, vec![loopback])
    }

    /// Creates the serving certificate of a Service, `<file>.crt` and `<file>.key`.
    pub(crate) fn service(&self, file: &str, name: &str) -> Result<Identity, PkiError> {
        let dns = name.try_into().map_err(|source| PkiError::Make { name: file.to_owned(), source })?;
        self.sign(file, name, None, vec![SanType::DnsName(dns)])
    }

    fn sign(&self, file: &str, user: &str, group: Option<&str>, names: Vec<SanType>) -> Result<Identity, PkiError> {
        let make = |source| PkiError::Make { name: file.to_owned(), source };
        let mut params = CertificateParams::new(Vec::new()).map_err(make)?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.subject_alt_names = names;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        live(&mut params);
        let pair = KeyPair::generate().map_err(make)?;
        let certificate_pem = params.signed_by(&pair, &self.issuer).map_err(make)?.pem();
        let key_pem = pair.serialize_pem();
        write_private(&self.path(&format!("{file}.crt")), &certificate_pem)?;
        write_private(&self.path(&format!("{file}.key")), &key_pem)?;
        Ok(Identity { certificate_pem, key_pem })
    }
}

fn authority_params() -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "comity test cluster");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    live(&mut params);
    Ok(params)
}

fn live(params: &mut CertificateParams) {
    let now = SystemTime::now();
    params.not_before = (now - BACKDATE).into();
    params.not_after = (now + LIFETIME).into();
}

fn read(path: &Path) -> Result<String, PkiError> {
    fs::read_to_string(path).map_err(|source| PkiError::File { path: path.to_owned(), source })
}

/// Writes a file that only its owner may read.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<(), PkiError> {
    let write = || {
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())
    };
    write().map_err(|source| PkiError::File { path: path.to_owned(), source })
}
