//! A kernel: one of a file of `engine/kernels`, made for formats, types and numbers.

#[cfg(any(test, feature = "faults"))]
use super::faults::Bug;
use super::kernels::File;
use std::fmt;

/// A kernel: a file's, with the formats, types and numbers that it is made for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// The file.
    pub file: File,
    /// Arguments of the template, e.g. `Q4_K, KvF16`; empty for a kernel that is none.
    pub arguments: String,
    /// A bug that is written into the file.
    #[cfg(any(test, feature = "faults"))]
    pub bug: Option<&'static Bug>,
}

impl Kernel {
    /// The file's kernel, made for `arguments`.
    pub fn new(file: File, arguments: String) -> Self {
        Self {
            file,
            arguments,
            #[cfg(any(test, feature = "faults"))]
            bug: None,
        }
    }

    /// What the compiler is given of the file.
    pub fn program(&self) -> String {
        #[cfg(any(test, feature = "faults"))]
        if let Some(bug) = self.bug {
            return bug.program(self.file);
        }
        format!("#include \"{}\"\n", self.file.path())
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.arguments.as_str() {
            "" => f.write_str(self.file.name()),
            arguments => write!(f, "{}<{arguments}>", self.file.name()),
        }
    }
}
