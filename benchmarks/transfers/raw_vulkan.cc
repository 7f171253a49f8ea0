// The least that Vulkan needs for a copy: a recorded command buffer, submitted and waited for. For
// benchmarks/runtime/transfer.py.
//
//     g++ -O2 -shared -fPIC -o raw_vulkan.so raw_vulkan.cc -lvulkan
#include <vulkan/vulkan.h>

#include <cstdint>
#include <vector>

namespace {

struct Memory {
  VkBuffer buffer = VK_NULL_HANDLE;
  VkDeviceMemory memory = VK_NULL_HANDLE;
  void* host = nullptr;
};

struct Raw {
  VkInstance instance = VK_NULL_HANDLE;
  VkPhysicalDevice physical = VK_NULL_HANDLE;
  VkDevice device = VK_NULL_HANDLE;
  VkQueue queue = VK_NULL_HANDLE;
  VkFence fence = VK_NULL_HANDLE;
  VkCommandPool pool = VK_NULL_HANDLE;
  Memory host, here, there;
  VkCommandBuffer commands[3] = {};  // host → device, device → host, device → device
};

bool Allocate(Raw* raw, VkDeviceSize size, VkMemoryPropertyFlags wanted, Memory* out) {
  VkBufferCreateInfo info{VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
  info.size = size;
  info.usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
  if (vkCreateBuffer(raw->device, &info, nullptr, &out->buffer) != VK_SUCCESS) return false;
  VkMemoryRequirements needs;
  vkGetBufferMemoryRequirements(raw->device, out->buffer, &needs);
  VkPhysicalDeviceMemoryProperties types;
  vkGetPhysicalDeviceMemoryProperties(raw->physical, &types);
  for (uint32_t i = 0; i < types.memoryTypeCount; ++i) {
    if ((needs.memoryTypeBits >> i & 1) == 0 || (types.memoryTypes[i].propertyFlags & wanted) != wanted) continue;
    VkMemoryAllocateInfo allocate{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, nullptr, needs.size, i};
    if (vkAllocateMemory(raw->device, &allocate, nullptr, &out->memory) != VK_SUCCESS) return false;
    if ((wanted & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT) != 0) {
      vkMapMemory(raw->device, out->memory, 0, VK_WHOLE_SIZE, 0, &out->host);
    }
    return vkBindBufferMemory(raw->device, out->buffer, out->memory, 0) == VK_SUCCESS;
  }
  return false;
}

}  // namespace

extern "C" {

// Opens physical device `index` as Vulkan lists them, with buffers of `size` bytes; null where that fails.
void* raw_open(uint32_t index, uint64_t size) {
  auto* raw = new Raw();
  VkApplicationInfo app{VK_STRUCTURE_TYPE_APPLICATION_INFO};
  app.apiVersion = VK_API_VERSION_1_1;
  VkInstanceCreateInfo instance{VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO};
  instance.pApplicationInfo = &app;
  if (vkCreateInstance(&instance, nullptr, &raw->instance) != VK_SUCCESS) return nullptr;
  uint32_t count = 0;
  vkEnumeratePhysicalDevices(raw->instance, &count, nullptr);
  std::vector<VkPhysicalDevice> all(count);
  vkEnumeratePhysicalDevices(raw->instance, &count, all.data());
  if (index >= count) return nullptr;
  raw->physical = all[index];
  uint32_t families = 0;
  vkGetPhysicalDeviceQueueFamilyProperties(raw->physical, &families, nullptr);
  std::vector<VkQueueFamilyProperties> properties(families);
  vkGetPhysicalDeviceQueueFamilyProperties(raw->physical, &families, properties.data());
  uint32_t family = 0;
  while (family < families && (properties[family].queueFlags & VK_QUEUE_COMPUTE_BIT) == 0) ++family;
  const float priority = 1;
  VkDeviceQueueCreateInfo queue{VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO};
  queue.queueFamilyIndex = family;
  queue.queueCount = 1;
  queue.pQueuePriorities = &priority;
  VkDeviceCreateInfo device{VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO};
  device.queueCreateInfoCount = 1;
  device.pQueueCreateInfos = &queue;
  if (vkCreateDevice(raw->physical, &device, nullptr, &raw->device) != VK_SUCCESS) return nullptr;
  vkGetDeviceQueue(raw->device, family, 0, &raw->queue);
  VkFenceCreateInfo fence{VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
  vkCreateFence(raw->device, &fence, nullptr, &raw->fence);
  VkCommandPoolCreateInfo pool{VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, nullptr, 0, family};
  vkCreateCommandPool(raw->device, &pool, nullptr, &raw->pool);
  constexpr VkMemoryPropertyFlags kMapped = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
  if (!Allocate(raw, size, kMapped | VK_MEMORY_PROPERTY_HOST_CACHED_BIT, &raw->host) ||
      !Allocate(raw, size, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, &raw->here) ||
      !Allocate(raw, size, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, &raw->there)) {
    return nullptr;
  }
  VkCommandBufferAllocateInfo buffers{VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, nullptr, raw->pool,
                                      VK_COMMAND_BUFFER_LEVEL_PRIMARY, 3};
  vkAllocateCommandBuffers(raw->device, &buffers, raw->commands);
  const VkBuffer pairs[3][2] = {{raw->host.buffer, raw->here.buffer},
                                {raw->here.buffer, raw->host.buffer},
                                {raw->here.buffer, raw->there.buffer}};
  for (int i = 0; i < 3; ++i) {
    VkCommandBufferBeginInfo begin{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    vkBeginCommandBuffer(raw->commands[i], &begin);
    const VkBufferCopy region{0, 0, size};
    vkCmdCopyBuffer(raw->commands[i], pairs[i][0], pairs[i][1], 1, &region);
    vkEndCommandBuffer(raw->commands[i]);
  }
  return raw;
}

// Carries out copy `which` and waits for it; gives the VkResult.
int raw_copy(void* handle, int which) {
  auto* raw = static_cast<Raw*>(handle);
  VkSubmitInfo submit{VK_STRUCTURE_TYPE_SUBMIT_INFO};
  submit.commandBufferCount = 1;
  submit.pCommandBuffers = &raw->commands[which];
  VkResult result = vkQueueSubmit(raw->queue, 1, &submit, raw->fence);
  if (result == VK_SUCCESS) result = vkWaitForFences(raw->device, 1, &raw->fence, VK_TRUE, UINT64_MAX);
  vkResetFences(raw->device, 1, &raw->fence);
  return result;
}

void raw_close(void* handle) {
  auto* raw = static_cast<Raw*>(handle);
  for (Memory* memory : {&raw->host, &raw->here, &raw->there}) {
    vkDestroyBuffer(raw->device, memory->buffer, nullptr);
    vkFreeMemory(raw->device, memory->memory, nullptr);
  }
  vkDestroyCommandPool(raw->device, raw->pool, nullptr);
  vkDestroyFence(raw->device, raw->fence, nullptr);
  vkDestroyDevice(raw->device, nullptr);
  vkDestroyInstance(raw->instance, nullptr);
  delete raw;
}

}  // extern "C"
