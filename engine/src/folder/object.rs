//! JSON of any origin: objects whose keys are all different, read in their order.

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

/// An object as its keys and values.
pub(super) struct Object<T>(pub(super) Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Pairs<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                let mut pairs = Vec::new();
                each_key(map, |key, map| {
                    pairs.push((key, map.next_value()?));
                    Ok(())
                })?;
                Ok(Object(pairs))
            }
        }
        deserializer.deserialize_map(Pairs(PhantomData))
    }
}

/// Calls `read` for each key, in their order; it takes the key's value out of the map.
///
/// # Errors
/// A key that occurs twice, and those of `read`.
pub(super) fn each_key<'de, A: MapAccess<'de>>(
    mut map: A, mut read: impl FnMut(String, &mut A) -> Result<(), A::Error>,
) -> Result<(), A::Error> {
    let mut seen = HashSet::new();
    while let Some(key) = map.next_key::<String>()? {
        if !seen.insert(key.clone()) {
            return Err(A::Error::custom(format!("key {key:?} occurs twice")));
        }
        read(key, &mut map)?;
    }
    Ok(())
}

impl<T> Object<T> {
    /// The value of `key`.
    pub(super) fn get(&self, key: &str) -> Option<&T> {
        self.0.iter().find(|(own, _)| own == key).map(|(_, value)| value)
    }
}
