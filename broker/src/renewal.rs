//! Renews a broker's own certificate from the authority on its disk, without closing connections.

pub mod follow_authority;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use comity_runtime::ca::{CaError, LiveAuthority};
use comity_runtime::clock::Clock;
use comity_runtime::host_name::HostName;
use comity_runtime::identity::{IdentityDir, IdentityError, IdentitySource, TlsIdentity};
use comity_runtime::spiffe::SpiffeId;
use tokio_util::sync::CancellationToken;

use crate::config::{Settings, certificate_hosts};
use crate::group::{Group, MemberAddress};

/// Interval of renewal checks; short, because clocks may be set.
const RENEWAL_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Why a certificate was not renewed.
#[derive(Debug, thiserror::Error)]
pub enum RenewalError {
    /// The authority cannot issue it.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// It cannot be stored.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// Renews one broker's certificate.
#[derive(Debug)]
pub struct Renewal {
    /// The authority.
    pub ca: LiveAuthority,
    /// Directory of key and certificate.
    pub dir: IdentityDir,
    /// Identity to certify.
    pub id: SpiffeId,
    /// The broker's number and addresses, and further names for its certificate.
    pub settings: Settings,
    /// Validity of each certificate.
    pub validity: Duration,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

impl Renewal {
    /// The identity on disk, renewed if it is due, lacks a host name, or is of an earlier intermediate. Without one, a
    /// new identity: the broker issues its own.
    ///
    /// # Errors
    /// [`RenewalError`].
    pub fn load(&self) -> Result<TlsIdentity, RenewalError> {
        let hosts = self.hosts(None);
        if !self.dir.exists() {
            tracing::warn!(path = %self.dir.path().display(), "there is no identity: this broker makes a new one");
            return self.renew(&hosts);
        }
        let (_, identity) = self.dir.load()?;
        if self.is_due(&identity, &hosts) { self.renew(&hosts) } else { Ok(identity) }
    }

    /// Renews whenever it is due, until `stop`. A broker that was added to a running group learns its own addresses from
    /// the group.
    pub async fn run(self, source: IdentitySource, group: Group, stop: CancellationToken) {
        let mut authority = self.ca.subscribe();
        loop {
            tokio::select! {
                () = self.clock.sleep(RENEWAL_CHECK_INTERVAL) => {}
                // The sender lives as long as `self`.
                _ = authority.changed() => {}
                () = stop.cancelled() => return,
            }
            let members = group.members();
            let own = members.iter().find(|member| member.id == self.settings.id).map(|member| &member.address);
            let hosts = self.hosts(own);
            if !self.is_due(&source.current(), &hosts) {
                continue;
            }
            match self.renew(&hosts) {
                Ok(identity) => source.update(identity),
                // A third of its validity is left for the operator to act.
                Err(error) => tracing::error!(%error, "this broker's certificate is not renewed"),
            }
        }
    }

    fn hosts(&self, of_group: Option<&MemberAddress>) -> Vec<HostName> {
        let configured = self.settings.members.get(&self.settings.id);
        certificate_hosts(&self.settings.hosts, configured.into_iter().chain(of_group))
    }

    fn is_due(&self, identity: &TlsIdentity, hosts: &[HostName]) -> bool {
        let named: BTreeSet<&HostName> = identity.hosts().iter().collect();
        self.clock.now() >= identity.renew_at()
            || !hosts.iter().all(|host| named.contains(host))
            || !self.ca.current().has_issued(identity)
    }

    fn renew(&self, hosts: &[HostName]) -> Result<TlsIdentity, RenewalError> {
        let pem = self.ca.current().new_identity(&self.id, hosts, self.validity, self.clock.now())?;
        let identity = self.dir.save(&pem)?;
        tracing::info!(id = %self.id, "this broker's certificate is renewed");
        Ok(identity)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use comity_runtime::ca::CertificateAuthority;
    use comity_runtime::clock::ManualClock;
    use comity_runtime::spiffe::TrustDomain;

    use super::*;
    use crate::config::parse_members;

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_of_its_life_and_when_it_lacks_a_name() {
        let home = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let domain = TrustDomain::new("dev.test").unwrap();
        let ca = LiveAuthority::new(CertificateAuthority::create(domain.clone(), now).unwrap());
        let clock = ManualClock::at_unix_ms(now.duration_since(UNIX_EPOCH).unwrap().as_millis().try_into().unwrap());
        let mut renewal = Renewal {
            id: SpiffeId::broker(domain, 1),
            settings: Settings {
                id: 1,
                members: parse_members("1=b1.example:7444/b1.example:7443").unwrap(),
                bootstrap_admins: BTreeSet::new(),
                hosts: BTreeSet::new(),
            },
            dir: IdentityDir::new(home.path()),
            validity: Duration::from_secs(3600),
            clock: Arc::new(clock.clone()),
            ca: ca.clone(),
        };
        let made = ca.current().new_identity(&renewal.id, &renewal.hosts(None), renewal.validity, now).unwrap();
        renewal.dir.save(&made).unwrap();
        let first = renewal.load().unwrap();
        clock.advance(Duration::from_secs(2300));
        assert_eq!(renewal.load().unwrap().not_after(), first.not_after());
        clock.advance(Duration::from_secs(300));
        let second = renewal.load().unwrap();
        assert!(second.not_after() > first.not_after());

        let balancer: HostName = "lb.example".parse().unwrap();
        assert!(!second.hosts().contains(&balancer));
        renewal.settings.hosts.insert(balancer.clone());
        let third = renewal.load().unwrap();
        assert!(third.hosts().contains(&balancer) && third.hosts().contains(&"b1.example".parse().unwrap()));
        clock.advance(Duration::from_secs(1));
        assert_eq!(renewal.load().unwrap().not_after(), third.not_after(), "it names every host");

        let next = CertificateAuthority::create(third.id().trust_domain().clone(), now).unwrap();
        let expected = next.root_sha256();
        ca.replace(next).unwrap();
        let fourth = renewal.load().unwrap();
        assert!(fourth.roots().contains(&expected), "the newest intermediate issues at once");

        std::fs::write(home.path().join("key.pem"), "damaged").unwrap();
        let error = renewal.load().unwrap_err().to_string();
        assert!(error.contains("key.pem: ") && error.contains("or remove it"), "{error}");
        std::fs::remove_dir_all(home.path()).unwrap();
        assert_eq!(*renewal.load().unwrap().id(), renewal.id, "the broker has the key that issues it");
    }
}
