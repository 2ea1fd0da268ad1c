# What qdiff changes in the build of llama.cpp, so that it takes less time. CMake includes this file after each project() command
# (.cargo/config.toml names it).

# The files of the library llama load models and build graphs; no run waits for them. They are compiled with little optimisation,
# several at a time, so that the compiler reads their common headers less often. The kernels (ggml) keep what llama.cpp asks for.
function(compile_llama_fast)
    get_target_property(sources llama SOURCES)
    get_target_property(folder llama SOURCE_DIR)
    list(FILTER sources INCLUDE REGEX "^llama.*\\.cpp$")
    list(TRANSFORM sources PREPEND ${folder}/)
    set_source_files_properties(${sources} TARGET_DIRECTORY llama PROPERTIES SKIP_UNITY_BUILD_INCLUSION OFF)
    set_target_properties(llama PROPERTIES UNITY_BUILD_BATCH_SIZE 12)
    target_compile_options(llama PRIVATE -O1)
endfunction()

# Older versions of CMake cannot defer a call to where the target is known.
if(PROJECT_IS_TOP_LEVEL AND CMAKE_VERSION VERSION_GREATER_EQUAL 3.21)
    cmake_language(DEFER CALL compile_llama_fast)
endif()
