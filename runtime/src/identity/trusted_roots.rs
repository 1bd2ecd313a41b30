//! The roots that a verifier trusts.

use tokio::sync::watch;

use super::{IdentitySource, Roots, TlsIdentity};

/// Roots that stay, or those of the newest identity: a renewal brings the roots of the federation with it, so that
/// these can change while connections stay open.
#[derive(Debug, Clone)]
pub struct TrustedRoots(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Fixed(Roots),
    OfIdentity(watch::Receiver<TlsIdentity>),
}

impl TrustedRoots {
    /// The roots of the newest identity.
    #[must_use]
    pub fn of(source: &IdentitySource) -> Self {
        Self(Kind::OfIdentity(source.subscribe()))
    }

    pub(crate) fn current(&self) -> Roots {
        match &self.0 {
            Kind::Fixed(roots) => roots.clone(),
            Kind::OfIdentity(identity) => identity.borrow().roots().clone(),
        }
    }
}

impl From<Roots> for TrustedRoots {
    fn from(roots: Roots) -> Self {
        Self(Kind::Fixed(roots))
    }
}

impl From<&Roots> for TrustedRoots {
    fn from(roots: &Roots) -> Self {
        Self(Kind::Fixed(roots.clone()))
    }
}
