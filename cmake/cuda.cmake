# mirror_train._cuda, the InfoNCE kernels for NVIDIA GPUs.
#
#   MIRROR_RT_CUDA=AUTO  build where a CUDA compiler and a GPU are found, for that GPU (default)
#   MIRROR_RT_CUDA=ON    build, or fail; for every architecture below
#   MIRROR_RT_CUDA=OFF   do not
#
# CMAKE_CUDA_ARCHITECTURES (or the environment variable CUDAARCHS) overrides what is built for.
set(MIRROR_RT_CUDA AUTO CACHE STRING "Build the CUDA kernels: AUTO, ON or OFF")
set_property(CACHE MIRROR_RT_CUDA PROPERTY STRINGS AUTO ON OFF)

# As in tests/compile_cuda.sh.
set(mirror_rt_architectures 75 80 86 89 90 100 120)

# The architecture of the first GPU here, such as 90; empty where there is none.
function(mirror_rt_find_gpu result)
  set(${result} "" PARENT_SCOPE)
  find_program(MIRROR_RT_NVIDIA_SMI nvidia-smi)
  mark_as_advanced(MIRROR_RT_NVIDIA_SMI)
  if(NOT MIRROR_RT_NVIDIA_SMI)
    return()
  endif()
  execute_process(
    COMMAND ${MIRROR_RT_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
    OUTPUT_VARIABLE capabilities ERROR_QUIET RESULT_VARIABLE status)
  if(status EQUAL 0 AND capabilities MATCHES "^([0-9]+)\\.([0-9]+)")
    set(${result} "${CMAKE_MATCH_1}${CMAKE_MATCH_2}" PARENT_SCOPE)
  endif()
endfunction()

# Those of mirror_rt_architectures that the compiler knows. The newest also as PTX, which later
# GPUs compile for themselves, and 90, for those between it and the newest that are not listed.
function(mirror_rt_known_architectures result)
  execute_process(
    COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
  set(architectures "")
  foreach(architecture IN LISTS mirror_rt_architectures)
    if(known STREQUAL "" OR known MATCHES "compute_${architecture}[^0-9]")
      list(APPEND architectures ${architecture})
    endif()
  endforeach()
  list(POP_BACK architectures newest)
  list(TRANSFORM architectures APPEND -real)
  list(TRANSFORM architectures REPLACE "^90-real$" 90)
  set(${result} ${architectures} ${newest} PARENT_SCOPE)
endfunction()

# Sets CMAKE_CUDA_ARCHITECTURES unless the user has, or `skip` to a reason not to build.
macro(mirror_rt_choose_architectures skip)
  set(${skip} "")
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    if(MIRROR_RT_CUDA STREQUAL "AUTO")
      mirror_rt_find_gpu(mirror_rt_gpu)
      if(mirror_rt_gpu STREQUAL "")
        set(${skip} "no NVIDIA GPU here")
      elseif(mirror_rt_gpu LESS 75)
        set(${skip} "the GPU has compute capability ${mirror_rt_gpu}, and 75 is the least")
      else()
        set(CMAKE_CUDA_ARCHITECTURES ${mirror_rt_gpu})
      endif()
    else()
      mirror_rt_known_architectures(CMAKE_CUDA_ARCHITECTURES)
    endif()
  endif()
endmacro()

# Standard, warnings and visibility of a target of ours with CUDA code.
function(mirror_rt_set_up_cuda target)
  set_target_properties(${target} PROPERTIES
    CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF
    CUDA_VISIBILITY_PRESET hidden CUDA_RUNTIME_LIBRARY Static POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/csrc)
  set(host_flags -Wall -Wextra)
  set(cuda_flags -Xcompiler=-Wall,-Wextra)
  if(MIRROR_RT_WERROR)
    list(APPEND host_flags -Werror)
    list(APPEND cuda_flags -Xcompiler=-Werror -Werror=all-warnings)
  endif()
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${host_flags}>" "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_flags}>")
endfunction()

# The tma core needs sm_90a, code for which runs on compute capability 9.0 and nothing else: so
# it is a file of its own. CMake older than 3.24 does not know the name, hence the plain option.
# `all`, `all-major` and `native` may mean 9.0, too; where they do not, the file is not used.
function(mirror_rt_add_tma)
  if(NOT "${CMAKE_CUDA_ARCHITECTURES}" MATCHES "90|all|native"
     OR CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.0)
    return()
  endif()
  add_library(mirror_rt_tma OBJECT csrc/infonce/gpu/tma.cu)
  mirror_rt_set_up_cuda(mirror_rt_tma)
  set_target_properties(mirror_rt_tma PROPERTIES CUDA_ARCHITECTURES OFF)
  target_compile_options(mirror_rt_tma PRIVATE --generate-code=arch=compute_90a,code=sm_90a)
  target_sources(_cuda PRIVATE $<TARGET_OBJECTS:mirror_rt_tma>)
  target_compile_definitions(_cuda PRIVATE MIRROR_TRAIN_TMA)
endfunction()

function(mirror_rt_add_cuda_module)
  # Without extras: link-time optimisation would not reach the device code anyway.
  pybind11_add_module(_cuda NO_EXTRAS
    csrc/bindings/cuda.cpp csrc/infonce/gpu/batch.cpp csrc/infonce/gpu/loss.cu
    csrc/infonce/gpu/taught.cpp)
  mirror_rt_set_up_cuda(_cuda)
  mirror_rt_add_tma()
  install(TARGETS _cuda LIBRARY DESTINATION mirror_train)
endfunction()

if(NOT MIRROR_RT_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "MIRROR_RT_CUDA must be AUTO, ON or OFF, got ${MIRROR_RT_CUDA}")
endif()
if(NOT MIRROR_RT_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    mirror_rt_choose_architectures(mirror_rt_skip)
  else()
    set(mirror_rt_skip "no CUDA compiler (nvcc) found")
  endif()
  if(mirror_rt_skip STREQUAL "")
    enable_language(CUDA)
    mirror_rt_add_cuda_module()
    message(STATUS "CUDA kernels: building for ${CMAKE_CUDA_ARCHITECTURES}")
  elseif(MIRROR_RT_CUDA STREQUAL "AUTO")
    message(STATUS "CUDA kernels: not built, ${mirror_rt_skip}; -DMIRROR_RT_CUDA=ON builds them")
  else()
    message(FATAL_ERROR "MIRROR_RT_CUDA=ON: ${mirror_rt_skip}")
  endif()
endif()
