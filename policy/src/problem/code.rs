//! The stable codes of problems.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The stable code of a [`Problem`](super::Problem), for scripts and for the documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemCode {
    /// The file is not UTF-8 text.
    NotText,
    /// The text is not YAML.
    YamlSyntax,
    /// A YAML feature that policy rejects: anchor, alias, tag, directive, or a key that is not text.
    UnsupportedYaml,
    /// A file, count, depth or length exceeds a bound of [`limits`](crate::limits).
    TooLarge,
    /// `apiVersion` is missing or is not `policy.comity.dev/v1`.
    UnknownApiVersion,
    /// `kind` is missing or unknown.
    UnknownKind,
    /// A field that the kind does not have.
    UnknownField,
    /// A join token, a private key or a password, which everybody who reads the policy would have.
    Secret,
    /// The same key twice in one mapping.
    DuplicateField,
    /// A required field is missing.
    MissingField,
    /// A value of the wrong YAML type, such as a list where text is expected.
    WrongType,
    /// A name or id that is not an RFC 1123 label.
    InvalidName,
    /// A user id that is not `spiffe://<trust domain>/user/<name>`.
    InvalidUserId,
    /// A signing key that is not `ed25519:<base64 of 32 bytes>`.
    InvalidKey,
    /// A duration without a unit, negative, or too long.
    InvalidDuration,
    /// A number that is negative, out of range, or not a number.
    InvalidQuantity,
    /// A date that is not RFC 3339.
    InvalidDate,
    /// A word outside the fixed set that the field allows.
    InvalidValue,
    /// Two fields that exclude each other, such as two dates or two limits.
    Contradiction,
    /// Two documents of one kind with the same name, or a repeated list entry.
    DuplicateName,
    /// A name that no document declares.
    UnknownReference,
    /// A time zone that the IANA database does not have.
    UnknownTimeZone,
    /// A CEL expression that cannot be parsed.
    CelSyntax,
    /// A CEL expression that names a field, variable or function that does not exist.
    CelUnknownName,
    /// A CEL expression with a type error.
    CelType,
    /// A CEL expression that exceeds a bound on length, depth or cost.
    CelTooCostly,
    /// The bundle has no Federation document.
    NoFederation,
    /// Warning: a reclaim notice of zero leaves work no time to save its state.
    NoNotice,
    /// Warning: a reclaim notice is longer than any lease.
    NoticeTooLong,
    /// Warning: two priority classes have the same value.
    EqualPriorities,
    /// Warning: a limit that never applies, because another one is lower.
    LimitOfNoUse,
    /// Warning: a donor lends a class that can match no device.
    ClassWithoutDevices,
    /// Warning: an agreement lasts less than the default lease term.
    AgreementTooShort,
    /// Warning: a quota is alone in its cohort, so that it neither lends nor borrows.
    CohortOfOne,
    /// Warning: no rule lets a tenant borrow anything.
    BorrowsNothing,
    /// Warning: a reservation holds more GPUs than its donor ever lends to its tenant.
    ReservationTooLarge,
    /// Warning: the tenant of a reservation may not borrow the class there.
    ReservationOfNoUse,
    /// Warning: nobody who is offered a request template may request its class.
    TemplateOfNoUse,
    /// Warning: no agreement lets the owner of a dataset read it where it may go.
    DatasetWithoutAgreement,
}

impl ProblemCode {
    /// The code in kebab case, as output and the documentation show it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotText => "not-text",
            Self::YamlSyntax => "yaml-syntax",
            Self::UnsupportedYaml => "unsupported-yaml",
            Self::TooLarge => "too-large",
            Self::UnknownApiVersion => "unknown-api-version",
            Self::UnknownKind => "unknown-kind",
            Self::UnknownField => "unknown-field",
            Self::Secret => "secret",
            Self::DuplicateField => "duplicate-field",
            Self::MissingField => "missing-field",
            Self::WrongType => "wrong-type",
            Self::InvalidName => "invalid-name",
            Self::InvalidUserId => "invalid-user-id",
            Self::InvalidKey => "invalid-key",
            Self::InvalidDuration => "invalid-duration",
            Self::InvalidQuantity => "invalid-quantity",
            Self::InvalidDate => "invalid-date",
            Self::InvalidValue => "invalid-value",
            Self::Contradiction => "contradiction",
            Self::DuplicateName => "duplicate-name",
            Self::UnknownReference => "unknown-reference",
            Self::UnknownTimeZone => "unknown-time-zone",
            Self::CelSyntax => "cel-syntax",
            Self::CelUnknownName => "cel-unknown-name",
            Self::CelType => "cel-type",
            Self::CelTooCostly => "cel-too-costly",
            Self::NoFederation => "no-federation",
            Self::NoNotice => "no-notice",
            Self::NoticeTooLong => "notice-too-long",
            Self::EqualPriorities => "equal-priorities",
            Self::LimitOfNoUse => "limit-of-no-use",
            Self::ClassWithoutDevices => "class-without-devices",
            Self::AgreementTooShort => "agreement-too-short",
            Self::CohortOfOne => "cohort-of-one",
            Self::BorrowsNothing => "borrows-nothing",
            Self::ReservationTooLarge => "reservation-too-large",
            Self::ReservationOfNoUse => "reservation-of-no-use",
            Self::TemplateOfNoUse => "template-of-no-use",
            Self::DatasetWithoutAgreement => "dataset-without-agreement",
        }
    }

    /// Whether a bundle with this problem compiles.
    #[must_use]
    pub const fn is_warning(self) -> bool {
        matches!(
            self,
            Self::NoNotice
                | Self::NoticeTooLong
                | Self::EqualPriorities
                | Self::LimitOfNoUse
                | Self::ClassWithoutDevices
                | Self::AgreementTooShort
                | Self::CohortOfOne
                | Self::BorrowsNothing
                | Self::ReservationTooLarge
                | Self::ReservationOfNoUse
                | Self::TemplateOfNoUse
                | Self::DatasetWithoutAgreement
        )
    }
}

impl fmt::Display for ProblemCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
