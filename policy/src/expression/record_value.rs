//! Records in expressions. A field is read when the expression asks for it.

use std::collections::BTreeMap;
use std::fmt;

use cel::ExecutionError;
use cel::common::traits::{Container, Indexer};
use cel::common::types::{CelInt, CelString, MAP_TYPE, Type};
use cel::common::value::{CowVal, Val};

/// Reads a field of the facts by its name; `None` if they lack it.
type ReadField<'f, F> = fn(&'f F, &str) -> Option<Box<dyn Val + 'f>>;

/// Facts as a map from the names of fields to their values.
pub(crate) struct RecordValue<'f, F> {
    facts: &'f F,
    read: ReadField<'f, F>,
}

impl<'f, F: fmt::Debug + Sync> RecordValue<'f, F> {
    pub(crate) fn boxed(facts: &'f F, read: ReadField<'f, F>) -> Box<dyn Val + 'f> {
        Box::new(Self { facts, read })
    }
}

/// A map of texts as a value.
pub(crate) fn text_map(texts: &BTreeMap<String, String>) -> Box<dyn Val + '_> {
    RecordValue::boxed(texts, |texts, name| texts.get(name).map(|value| text(value)))
}

/// Text as a value.
pub(crate) fn text(value: &str) -> Box<dyn Val + '_> {
    Box::new(CelString::from(value))
}

/// A number as a value.
pub(crate) fn number<'v>(value: i64) -> Box<dyn Val + 'v> {
    Box::new(CelInt::from(value))
}

impl<F> Clone for RecordValue<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for RecordValue<'_, F> {}

impl<F: fmt::Debug> fmt::Debug for RecordValue<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.facts.fmt(f)
    }
}

impl<F: fmt::Debug + Sync> RecordValue<'_, F> {
    fn field<'v>(&self, name: &dyn Val) -> Result<Box<dyn Val + 'v>, ExecutionError>
    where
        Self: 'v,
    {
        let Some(name) = name.downcast_ref::<CelString>() else {
            return Err(ExecutionError::UnexpectedType {
                got: name.get_type().name().to_owned(),
                want: "string".to_owned(),
            });
        };
        (self.read)(self.facts, name).ok_or_else(|| ExecutionError::no_such_key(name))
    }
}

impl<F: fmt::Debug + Sync> Val for RecordValue<'_, F> {
    fn get_type(&self) -> &Type {
        <Self as Val>::cel_type()
    }

    fn cel_type() -> &'static Type {
        &MAP_TYPE
    }

    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn as_container(&self) -> Option<&dyn Container> {
        Some(self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v>
    where
        Self: 'v,
    {
        Box::new(*self)
    }
}

impl<F: fmt::Debug + Sync> Indexer for RecordValue<'_, F> {
    fn get<'b, 'v>(&'b self, name: &dyn Val) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        self.field(name).map(CowVal::Owned)
    }

    fn steal<'v>(self: Box<Self>, name: &dyn Val) -> Result<Box<dyn Val + 'v>, ExecutionError>
    where
        Self: 'v,
    {
        self.field(name)
    }
}

impl<F: fmt::Debug + Sync> Container for RecordValue<'_, F> {
    fn contains(&self, name: &dyn Val) -> Result<bool, ExecutionError> {
        Ok(self.field(name).is_ok())
    }
}
