//! The interface of all kinds of steps.

use std::time::Duration;

use crate::reconcile::parts::Parts;
use crate::reconcile::steps::error::StepError;

/// Time limit of most steps.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);

/// One kind of step.
pub(crate) trait Kind {
    /// Its name, for metrics, logs and crash points.
    const NAME: &'static str;

    /// All names that steps of this kind have.
    fn names() -> Vec<&'static str> {
        vec![Self::NAME]
    }

    /// The name of this step.
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// Key for mutual exclusion: steps with the same object never run at the same time; others never wait for each
    /// other.
    fn object(&self) -> String;

    /// W3C trace context of the lease's submission; empty for steps that carry no lease.
    fn traceparent(&self) -> &str {
        ""
    }

    /// Time limit.
    fn deadline(&self) -> Duration {
        DEFAULT_DEADLINE
    }

    /// Does the work. An error is retried after a pause; permanent failures are reported to the broker instead.
    async fn run(&self, parts: &Parts) -> Result<(), StepError>;
}

/// Declares an enum of kinds, or of such enums, that forwards to the kind in force; `in` names the enum around it.
macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident in $outer:ident { $($(#[$kind_doc:meta])* $variant:ident($kind:ty),)+ }) => {
        kinds! { $(#[$doc])* $name { $($(#[$kind_doc])* $variant($kind),)+ } }

        $(impl From<$kind> for $outer {
            fn from(kind: $kind) -> Self {
                $name::from(kind).into()
            }
        })+
    };
    ($(#[$doc:meta])* $name:ident { $($(#[$kind_doc:meta])* $variant:ident($kind:ty),)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $name {
            $($(#[$kind_doc])* $variant($kind),)+
        }

        $(impl From<$kind> for $name {
            fn from(kind: $kind) -> Self {
                Self::$variant(kind)
            }
        })+

        impl $name {
            /// The names of all kinds, for metrics, logs and crash points.
            #[must_use]
            pub fn names() -> Vec<&'static str> {
                [$(<$kind>::names()),+].concat()
            }

            /// One of [`names`](Self::names).
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(kind) => kind.name(),)+
                }
            }

            /// Key for mutual exclusion: steps with the same object never run at the same time; others never wait for
            /// each other.
            #[must_use]
            pub fn object(&self) -> String {
                match self {
                    $(Self::$variant(kind) => kind.object(),)+
                }
            }

            /// W3C trace context of the lease's submission; empty for steps that carry no lease.
            #[must_use]
            pub fn traceparent(&self) -> &str {
                match self {
                    $(Self::$variant(kind) => kind.traceparent(),)+
                }
            }

            /// Time limit.
            #[must_use]
            pub fn deadline(&self) -> Duration {
                match self {
                    $(Self::$variant(kind) => kind.deadline(),)+
                }
            }

            /// Does the work.
            ///
            /// # Errors
            /// [`StepError`], to be retried after a pause. Permanent failures are reported to the broker instead.
            pub async fn run(&self, parts: &Parts) -> Result<(), StepError> {
                match self {
                    $(Self::$variant(kind) => kind.run(parts).await,)+
                }
            }
        }
    };
}

pub(crate) use kinds;
