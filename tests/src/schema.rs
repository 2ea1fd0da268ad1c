//! JSON schemas, held against what is said to follow them.

use crate::{qdiff, stdout};
use serde_json::Value;
use std::path::Path;

/// A compiled schema.
pub struct Schema {
    schemas: boon::Schemas,
    index: boon::SchemaIndex,
}

impl Schema {
    /// Compiles `schema`.
    ///
    /// # Panics
    /// If it is no schema of draft 2020-12.
    pub fn new(schema: Value) -> Self {
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
        let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
        compiler.add_resource("schema.json", schema).expect("a schema is JSON");
        let index = compiler.compile("schema.json", &mut schemas).expect("the schema follows its own");
        Self { schemas, index }
    }

    /// What `qdiff schema WHAT` prints.
    ///
    /// # Panics
    /// As [`Schema::new`].
    pub fn printed(what: &str) -> Self {
        let output = qdiff(Path::new("."), &["schema", what]);
        Self::new(serde_json::from_str(&stdout(&output)).expect("a schema is JSON"))
    }

    /// Whether `value` follows it.
    ///
    /// # Errors
    /// What does not, and where.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        let outcome = self.schemas.validate(value, self.index);
        outcome.map_err(|e| e.to_string())
    }
}
